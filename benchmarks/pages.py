"""Fill the marked blocks of README.md and docs/ from records."""

import re
from pathlib import Path

from benchmarks.tables import blocks, scale
from benchmarks.tables.blocks import Records
from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError, did_you_mean, require

BLOCKS = blocks.BLOCKS | scale.BLOCKS
MARKED = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", flags=re.DOTALL)


def pages(root: Path) -> list[Path]:
    how = "run the command in the project's folder, or give it with --root"
    return [require(root / "README.md", how=how), *sorted((root / "docs").rglob("*.md"))]


def filled(page: Path, records: Records) -> str:
    """The page's text with each block, between <!-- name --> and <!-- /name -->, written from `records`."""

    def block(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in BLOCKS:
            raise UserError(f"{page}: no such block {name!r}; {did_you_mean(name, BLOCKS)}")
        try:
            written = BLOCKS[name](records)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{page}: the records of {name!r} lack {error}; measure them again") from None
        return f"<!-- {name} -->\n{written}\n<!-- /{name} -->"

    return MARKED.sub(block, page.read_text(encoding="utf-8"))


def write_docs(root: Path, records: Records) -> list[Path]:
    """Write every page whose blocks have changed; return those pages."""
    texts = {page: filled(page, records) for page in pages(root)}  # all are made before any is written
    changed = [page for page, text in texts.items() if text != page.read_text(encoding="utf-8")]
    for page in changed:
        write_text(page, texts[page])
    return changed
