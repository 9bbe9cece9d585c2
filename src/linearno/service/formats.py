"""Formats of bodies, by content type."""

from fastapi import Request

from linearno.core.errors import brief
from linearno.service.errors import RequestError

FORMATS = {
    "application/x-npz": "npz",
    "application/json": "json",
    "application/x-vtu": "vtu",
    "application/x-vtp": "vtp",
    "application/x-vtk": "vtk",
}
MEDIA_TYPES = {kind: name for name, kind in FORMATS.items()}


def format_of(request: Request) -> str:
    """Format of the body: npz, json, vtu, vtp or vtk."""
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if name not in FORMATS:
        raise RequestError(415, f"content type {brief(name)}; expected one of {', '.join(FORMATS)}")
    if encoding := request.headers.get("content-encoding"):
        raise RequestError(415, f"content encoding {brief(encoding)}; send the body without one")
    return FORMATS[name]
