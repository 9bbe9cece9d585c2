"""What a file holds, in words: its shape, and the range of each field."""

from pathlib import Path

import numpy as np
from numpy import ndarray

from . import vtk_files
from .geometry import Surface, axes_of, boundary, cell_dimension, oriented
from .io import faults_of, is_surface, marks_on, open_mesh
from .ipc import Arrays, Words


def look(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """All that `linearno init` shows, and guesses from."""
    mesh = open_mesh(words)
    solid = len(mesh.points) > 0 and np.isfinite(mesh.points).all()
    surface = boundary(mesh) if solid and cell_dimension(mesh) > 1 else None
    rim = None if surface is None or is_surface(mesh) else marks_on(mesh, surface)
    fields = [_facts(name, "points", values, rim) for name, values in mesh.point.items()]
    fields += [_facts(name, "cells", values, None) for name, values in mesh.cell.items()]
    numbers = {name: values.reshape(1, -1) for name, values in mesh.case.items() if values.size}
    fields += [_facts(name, "case", values, None) for name, values in numbers.items()]
    return {
        "kind": mesh.kind,
        "points": len(mesh.points),
        "cells": mesh.cell_count,
        "axes": axes_of(mesh.points) if solid else [],
        "cell_dimension": cell_dimension(mesh),
        "is_surface": is_surface(mesh),
        "open_sides": _open_sides(surface, words["beside"]),
        "units": mesh.units,
        "fields": fields,
        "faults": faults_of(mesh),
    }, {}


def _open_sides(own: Surface | None, beside: str | None) -> dict[str, int]:
    """How open the surfaces are that a distance could be measured from."""
    found = {} if own is None else {"own": own.open_sides}
    if beside is not None:
        found["beside"] = oriented(vtk_files.read_grid(Path(beside))).open_sides
    return found


def _facts(name: str, location: str, values: ndarray, rim: ndarray | None) -> Words:
    columns = values.reshape(len(values), -1).astype(float)
    good = np.isfinite(columns)
    known = good.any(axis=0).all()
    return {
        "name": name,
        "location": location,
        "components": columns.shape[1],
        "integer": values.dtype.kind in "iub",
        "min": np.where(good, columns, np.inf).min(axis=0).tolist() if known and len(columns) else [],
        "max": np.where(good, columns, -np.inf).max(axis=0).tolist() if known and len(columns) else [],
        "missing": int((~good).any(axis=1).sum()),
        "constant": bool(len(columns) and good.all() and (columns == columns[0]).all()),
        "rim_only": rim is not None and _rim_only(columns, rim),
    }


def _rim_only(columns: ndarray, rim: ndarray) -> bool:
    """A field that is nothing (0, or no number) but on the boundary of a mesh, which also has an inside."""
    nothing = (~np.isfinite(columns) | (columns == 0)).all(axis=1)
    return bool(not rim.all() and nothing[~rim].all() and not nothing[rim].all())
