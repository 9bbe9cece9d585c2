"""Build HTML with automatic escaping: `Markup` is inserted as it is, other text is escaped."""

from html import escape

EMPTY = {"img", "meta"}  # elements without content


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, *children: str, **attributes: str | None) -> Markup:
    """`<name …>children</name>`; `class_` becomes `class`, attributes that are None are omitted."""
    written = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{''.join(written)}>"
    return Markup(opening if name in EMPTY else f"{opening}{join(children)}</{name}>")


def join(children: tuple[str, ...] | list[Markup] | list[str], between: str = "") -> Markup:
    """Concatenate children, each escaped unless it is `Markup`."""
    parts = (child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(between.join(parts))


def table(head: list[str], rows: list[list[str]]) -> Markup:
    """A table in a container that scrolls horizontally if it is wider than the page."""
    titles = tag("tr", *(tag("th", title, scope="col") for title in head))
    lines = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)) for first, *rest in rows
    ]
    return tag("div", tag("table", tag("thead", titles), tag("tbody", *lines)), class_="scroll")


def details(title: str, *children: str, open_: bool = False) -> Markup:
    """A collapsible part of a page, closed by default."""
    attributes = {"open": ""} if open_ else {}
    return tag("details", tag("summary", title), *children, **attributes)
