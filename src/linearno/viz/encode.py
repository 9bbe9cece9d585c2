"""Encode figures as pixels, PNG, GIF and data URIs. Axes: T frames, H rows and W columns of pixels."""

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
LAST_FRAME_SECONDS = 1.0  # additional time of the last frame before the animation repeats

Pixels = UInt8[ndarray, "H W 3"]


def png_bytes(figure: Figure, *, dpi: int = DPI) -> bytes:
    """Encode a figure as PNG, without metadata: equal figures give equal bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def data_uri(image: Figure | bytes) -> str:
    """Encode a figure as PNG, or the bytes of a GIF, as a `data:` URI for a self-contained page."""
    kind, content = ("png", png_bytes(image)) if isinstance(image, Figure) else ("gif", image)
    return f"data:image/{kind};base64," + b64encode(content).decode("ascii")


def pixels(figure: Figure, *, dpi: int) -> Pixels:
    """Render a figure as RGB pixels."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def gif_bytes(frames: Sequence[Pixels], *, fps: float) -> bytes:
    """Encode frames of one size as an animated GIF that repeats.

    All frames share a palette of 256 colours, without dithering, which would flicker and compress badly.
    """
    index, palette = quantize_colours(np.stack(frames))
    images = [Image.fromarray(frame) for frame in index]
    for image in images:
        image.putpalette(palette)
    duration = [round(1000 / fps)] * len(images)
    duration[-1] += round(1000 * LAST_FRAME_SECONDS)
    buffer = BytesIO()
    images[0].save(buffer, format="GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
    return buffer.getvalue()


def quantize_colours(frames: UInt8[ndarray, "T H W 3"]) -> tuple[UInt8[ndarray, "T H W"], list[int]]:
    """Palette index of each pixel, and a palette of 255 colours and white.

    Colours are weighted by the square root of their pixel counts, a compromise between the many rare shades
    at the edges of lines and the few shades that fill a map.
    """
    red, green, blue = np.moveaxis(frames.astype(np.int32), -1, 0)
    codes, inverse, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)
    white = (colours == 255).all(axis=-1)
    weights = np.where(white, 1, np.ceil(np.sqrt(counts)).astype(int))
    quantized = Image.fromarray(np.repeat(colours, weights, axis=0)[None]).quantize(255)
    color_index = np.array(quantized)[0][np.cumsum(weights) - 1]
    index = np.where(white, 255, color_index).astype(np.uint8)
    palette = np.full((256, 3), 255)
    entries = np.reshape(quantized.getpalette() or [], (-1, 3))[:255]
    palette[: len(entries)] = entries
    return index[inverse].reshape(frames.shape[:-1]), palette.ravel().tolist()
