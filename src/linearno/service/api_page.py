"""The API as a page without scripts or files from elsewhere."""

from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
:root{color-scheme:light dark}
section{border-top:1px solid #8886;padding:.6rem 0}
code{font-family:ui-monospace,monospace;font-size:.92em}
h2{font-size:1.1rem;margin:.4rem 0}
td{padding:.1rem 1rem .1rem 0;vertical-align:top}
"""


def api_page(schema: Mapping[str, Any]) -> str:
    """An HTML page of the operations in an OpenAPI schema."""
    info = schema["info"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}"
        " The schema is at <a href=openapi.json>openapi.json</a>.</p>"
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.append(_section(path, method, operation))
    return "".join(parts) + "</html>"


def _section(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (f"<code>{escape(part['name'])}</code>", escape(part.get("description", "")))
        for part in operation.get("parameters", [])
    ]
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        rows.append(("body", ", ".join(f"<code>{escape(name)}</code>" for name in content)))
    table = "".join(f"<tr><td>{left}<td>{right}" for left, right in rows)
    text = escape(operation.get("description", ""))
    head = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>{head}<p>{text}</p><table>{table}</table></section>"
