"""Figures to pixels, PNG and GIF, and to text that a page can hold. Axes: H rows and W columns of pixels."""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from jaxtyping import UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy import ndarray
from PIL import Image

DPI = 150
PAUSE = 1.0  # seconds that the last frame of an animation stays before it begins again

Pixels = UInt8[ndarray, "H W 3"]


def png_bytes(figure: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as a PNG file; the same figure gives the same bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def data_uri(image: Figure | bytes) -> str:
    """A figure, or the bytes of a GIF, as a `data:` address, to stand in a page that loads nothing."""
    kind, content = ("png", png_bytes(image)) if isinstance(image, Figure) else ("gif", image)
    return f"data:image/{kind};base64," + b64encode(content).decode("ascii")


def pixels(figure: Figure, *, dpi: int) -> Pixels:
    """The figure as red, green and blue."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def gif_bytes(frames: Sequence[Pixels], *, fps: float) -> bytes:
    """Frames of one size as an animated GIF that begins again and again.

    All share 256 colours. No dithering: it would flicker from frame to frame, and not compress.
    """
    index, palette = few_colours(np.stack(frames))
    images = [Image.fromarray(frame) for frame in index]
    for image in images:
        image.putpalette(palette)
    duration = [round(1000 / fps)] * len(images)
    duration[-1] += round(1000 * PAUSE)
    buffer = BytesIO()
    images[0].save(buffer, format="GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
    return buffer.getvalue()


def few_colours(frames: UInt8[ndarray, "T H W 3"]) -> tuple[UInt8[ndarray, "T H W"], list[int]]:
    """For each pixel its place in a palette: white, and 255 colours for all others.

    Colours count by the root of how many pixels have them: the shades at the edges of lines and dots are many
    and small, and must not take the place of those that fill a map; nor may thin lines be lost.
    """
    red, green, blue = np.moveaxis(frames.astype(np.int32), -1, 0)
    codes, place, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)
    white = (colours == 255).all(axis=-1)
    weights = np.where(white, 1, np.ceil(np.sqrt(counts)).astype(int))
    chosen = Image.fromarray(np.repeat(colours, weights, axis=0)[None]).quantize(255)
    own = np.array(chosen)[0][np.cumsum(weights) - 1]
    index = np.where(white, 255, own).astype(np.uint8)
    palette = np.full((256, 3), 255)
    some = np.reshape(chosen.getpalette() or [], (-1, 3))[:255]
    palette[: len(some)] = some
    return index[place].reshape(frames.shape[:-1]), palette.ravel().tolist()
