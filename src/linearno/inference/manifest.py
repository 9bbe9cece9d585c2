"""A folder of published bundles: `manifest.json` states the hashes, recipe and error of each."""

from pathlib import Path
from typing import Any

from linearno.core.atomic_io import read_json, sha256
from linearno.core.errors import UserError

MANIFEST = "manifest.json"
HOW = "fetch the folder of weights again"


def manifest_entry(folder: Path) -> dict[str, Any] | None:
    """What the manifest next to a bundle says about it; None if there is no manifest or entry."""
    folder = folder.resolve()
    path = folder.parent / MANIFEST
    if not path.exists():
        return None
    entries = read_json(path, how=HOW)
    entry = entries.get(folder.name) if isinstance(entries, dict) else None
    if entry is not None and not isinstance(entry.get("sha256"), dict):
        raise UserError(f"{path}: {folder.name} has no hashes; {HOW}")
    return entry


def require_published_hashes(folder: Path) -> None:
    """An error if a file of a published bundle is not the one that its manifest describes."""
    if (entry := manifest_entry(folder)) is None:
        return
    for name, expected in entry["sha256"].items():
        path = folder / name
        if not path.exists() or sha256(path) != expected:
            raise UserError(f"{path} is not the file described in {folder.parent / MANIFEST}; {HOW}")
