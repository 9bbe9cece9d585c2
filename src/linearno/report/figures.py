"""Extract the images of a page as files, for other documents."""

import re
from base64 import b64decode
from html import unescape
from io import BytesIO
from pathlib import Path

from PIL import Image

from linearno.core.atomic_io import write_bytes

IMAGE_PATTERN = re.compile(r'<img src="data:image/(png|gif);base64,([^"]+)" alt="([^"]*)"')
MAX_WIDTH = 1000  # pixels


def write_figures(page: str, folder: Path) -> list[Path]:
    """Write every image of a page to a file, numbered and named by its alternative text."""
    paths = []
    for index, (kind, content, alt) in enumerate(IMAGE_PATTERN.findall(page), start=1):
        data = b64decode(content)
        path = folder / f"{index:02d}-{_slug(unescape(alt))}.{kind}"
        write_bytes(path, data if kind == "gif" else small_png(data))
        paths.append(path)
    return paths


def _slug(text: str, max_words: int = 6) -> str:
    """The first words of `text` in lower case, joined by hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.split(":")[0].lower())[:max_words])


def small_png(png: bytes) -> bytes:
    """Reduce a PNG to at most `MAX_WIDTH`, in full colour: a palette would show bands in smooth shades."""
    image = Image.open(BytesIO(png)).convert("RGB")
    if image.width > MAX_WIDTH:
        image = image.resize(
            (MAX_WIDTH, round(image.height * MAX_WIDTH / image.width)), Image.Resampling.LANCZOS
        )
    buffer = BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
