"""Write the tables of README.md and docs/, between their markers, from records."""

import re
from pathlib import Path

from benchmarks.tables import TABLES
from benchmarks.tables.markdown import Records
from linearno.core.atomic_io import write_text
from linearno.core.errors import UserError, did_you_mean, require

MARKED_TABLE = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", flags=re.DOTALL)


def pages(root: Path) -> list[Path]:
    """README.md and the Markdown files of docs/."""
    hint = "run the command in the repository root, or give it with --root"
    return [require(root / "README.md", how=hint), *sorted((root / "docs").rglob("*.md"))]


def filled(page: Path, records: Records) -> str:
    """Text of the page with the tables between <!-- name --> and <!-- /name --> rewritten from `records`."""

    def table(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in TABLES:
            raise UserError(f"{page}: no such table {name!r}; {did_you_mean(name, TABLES)}")
        try:
            text = TABLES[name](records)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{page}: records of table {name!r} lack {error}; measure them again") from None
        return f"<!-- {name} -->\n{text}\n<!-- /{name} -->"

    return MARKED_TABLE.sub(table, page.read_text(encoding="utf-8"))


def write_docs(root: Path, records: Records) -> list[Path]:
    """Rewrite all tables, write the pages that changed and return their paths."""
    texts = {page: filled(page, records) for page in pages(root)}
    changed = [page for page, text in texts.items() if text != page.read_text(encoding="utf-8")]
    for page in changed:
        write_text(page, texts[page])
    return changed
