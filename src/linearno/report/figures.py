"""The pictures of a page as small files of their own, for a document that cannot hold the page."""

import re
from base64 import b64decode
from html import unescape
from io import BytesIO
from pathlib import Path

from PIL import Image

from linearno.core.atomic_io import write_bytes

IMAGE = re.compile(r'<img src="data:image/(png|gif);base64,([^"]+)" alt="([^"]*)"')
WIDTH = 1000  # pixels, at most


def write_figures(page: str, folder: Path) -> list[Path]:
    """Every picture of a finished page, in its order, named by what it shows."""
    paths = []
    for place, (kind, content, words) in enumerate(IMAGE.findall(page), start=1):
        data = b64decode(content)
        path = folder / f"{place:02d}-{_slug(unescape(words))}.{kind}"
        write_bytes(path, data if kind == "gif" else small_png(data))
        paths.append(path)
    return paths


def _slug(words: str, most: int = 6) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", words.split(":")[0].lower())[:most])


def small_png(png: bytes) -> bytes:
    """The picture at most WIDTH wide, in all its colours: 256 would make steps of smooth shades."""
    image = Image.open(BytesIO(png)).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
