"""Write the tables of README.md and docs/, between their markers, from records."""

import re
from pathlib import Path

from benchmarks.tables import TABLES
from benchmarks.tables.markdown import Records
from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError, did_you_mean, require

MARKED = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", flags=re.DOTALL)


def pages(root: Path) -> list[Path]:
    how = "run the command in the project's folder, or give it with --root"
    return [require(root / "README.md", how=how), *sorted((root / "docs").rglob("*.md"))]


def filled(page: Path, records: Records) -> str:
    """The page's text with each table, between <!-- name --> and <!-- /name -->, written from `records`."""

    def table(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in TABLES:
            raise UserError(f"{page}: no such table {name!r}; {did_you_mean(name, TABLES)}")
        try:
            written = TABLES[name](records)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{page}: the records of {name!r} lack {error}; measure them again") from None
        return f"<!-- {name} -->\n{written}\n<!-- /{name} -->"

    return MARKED.sub(table, page.read_text(encoding="utf-8"))


def write_docs(root: Path, records: Records) -> list[Path]:
    """Write every page whose tables have changed, after all were made; return those pages."""
    texts = {page: filled(page, records) for page in pages(root)}
    changed = [page for page, text in texts.items() if text != page.read_text(encoding="utf-8")]
    for page in changed:
        write_text(page, texts[page])
    return changed
