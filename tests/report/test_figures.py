"""Pictures of a page as files of their own."""

from io import BytesIO

import numpy as np
from PIL import Image

from linearno.report.figures import MAX_WIDTH, small_png


def png(pixels):
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def test_a_small_picture_keeps_every_shade_of_a_map():
    ramp = np.arange(256, dtype=np.uint8)
    maps = [np.stack([ramp, 255 - ramp, np.full_like(ramp, blue)], axis=-1) for blue in range(0, 200, 20)]
    drawn = np.stack(maps)  # 10 rows, 2,560 colours
    np.testing.assert_array_equal(np.array(Image.open(BytesIO(small_png(png(drawn)))).convert("RGB")), drawn)


def test_a_wide_picture_is_made_smaller_in_both_directions():
    small = Image.open(BytesIO(small_png(png(np.zeros((300, 3 * MAX_WIDTH, 3), dtype=np.uint8)))))
    assert small.size == (MAX_WIDTH, 100)
