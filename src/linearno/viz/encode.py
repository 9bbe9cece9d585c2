"""Figures to PNG, and to text that a page can hold."""

from base64 import b64encode
from io import BytesIO

from matplotlib.figure import Figure

DPI = 150


def png_bytes(figure: Figure, *, dpi: int = DPI) -> bytes:
    """The figure as a PNG file; the same figure gives the same bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def data_uri(figure: Figure, *, dpi: int = DPI) -> str:
    """The figure as a `data:` address, to stand in a page that loads nothing."""
    return "data:image/png;base64," + b64encode(png_bytes(figure, dpi=dpi)).decode("ascii")
