"""A page with a table, figures and notes, as Markdown and HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from linearno.core.atomic_io import write_bytes, write_text
from linearno.report.html import Markup, table, tag
from linearno.report.page import document
from linearno.reproduce.figures import svg_bytes
from linearno.viz import png_bytes


@dataclass(frozen=True)
class Section:
    """A part of a page below its table: a paragraph, another table, notes."""

    title: str
    text: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


class Captioned(NamedTuple):
    """A figure and what it shows; "" if the title of the page says it."""

    figure: Figure
    caption: str = ""


@dataclass(frozen=True)
class Page:
    """A table with its title, introduction, figures (by name) and further sections."""

    title: str
    text: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, Captioned] = field(default_factory=dict)
    sections: Sequence[Section] = ()


def write_page(folder: Path, name: str, page: Page) -> None:
    """Write NAME.md, NAME.html, and the figures as PNG and SVG."""
    for figure_name, drawn in page.figures.items():
        write_bytes(folder / f"{figure_name}.png", png_bytes(drawn.figure))
        write_bytes(folder / f"{figure_name}.svg", svg_bytes(drawn.figure))
    write_text(folder / f"{name}.md", markdown(page))
    write_text(folder / f"{name}.html", html(page))


def markdown(page: Page) -> str:
    parts = [f"# {page.title}", page.text, _markdown_table(page.head, page.rows)]
    parts.extend(f"![{figure.caption or page.title}]({name}.png)" for name, figure in page.figures.items())
    for section in page.sections:
        parts.append(f"## {section.title}")
        if section.text:
            parts.append(section.text)
        if section.rows:
            parts.append(_markdown_table(section.head, section.rows))
        if section.notes:
            parts.append("\n".join(f"- {note}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def html(page: Page) -> str:
    parts: list[Markup] = [_html_table(page.head, page.rows)]
    drawn = [_html_figure(name, figure, page.title) for name, figure in page.figures.items()]
    parts.append(tag("div", *drawn, class_="figures two" if len(drawn) > 1 else None))
    for section in page.sections:
        parts.append(tag("h2", section.title))
        if section.text:
            parts.append(tag("p", section.text, class_="quiet"))
        if section.rows:
            parts.append(_html_table(section.head, section.rows))
        if section.notes:
            parts.append(tag("ul", *(tag("li", note) for note in section.notes)))
    header = tag("header", tag("h1", page.title), tag("p", page.text, class_="quiet"))
    return document(page.title, header, tag("main", tag("section", *parts)))


def _html_figure(name: str, figure: Captioned, title: str) -> Markup:
    image = tag("img", src=f"{name}.png", alt=figure.caption or title)
    return tag("figure", image, *([tag("figcaption", figure.caption)] if figure.caption else []))


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    return table(list(head), [list(row) for row in rows])
