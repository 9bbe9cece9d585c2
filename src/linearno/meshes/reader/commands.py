"""What the process is asked to do with a file: look at it, read it, ask it elsewhere, write it with more."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray

from . import array_files, vtk_files
from .features import derived_inputs
from .geometry import AXES, Surface, axes_of, boundary, oriented, part_of
from .inspect_fields import look
from .io import ARRAYS, faults_of, is_surface, marks_on, open_mesh
from .ipc import Arrays, Refused, Words
from .mesh import Mesh, mean_over

NEAR = 1e-6  # of the extent: a point this near to a surface is on it


def read(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """Places, fields, numbers of the case and derived inputs at the points of a mesh, or in its cells.

    words   path, beside, location, fields, values, derived, surface, mark_surface, tolerate
    """
    mesh = open_mesh(words)
    location = words["location"]
    _require_good(mesh, location, words["tolerate"])
    places = _places(mesh, location)
    found = {f"field:{name}": at(mesh, name, location) for name in words["fields"]}
    found |= {f"value:{name}": _value(mesh, name) for name in words["values"]}
    surface = _surface(mesh, words) if words["derived"] or words["mark_surface"] else None
    if surface is not None:
        found |= _derived(words, places, surface)
    if surface is not None and words["mark_surface"]:
        found["surface"] = _marks(mesh, location, places, surface, words["surface"])
    there = {name: values for name, values in found.items() if values is not None}
    names = {part: list(mesh.fields(part)) for part in ("points", "cells")} | {"case": list(mesh.case)}
    facts = {"axes": axes_of(mesh.points), "units": mesh.units, "names": names, "cells": mesh.cell_count}
    return facts, {"places": places, **there}


def probe(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """Fields and derived inputs of a mesh at other places, given as `places` (Q, 3)."""
    mesh = open_mesh(words)
    places, axes = arrays["places"].astype(float), axes_of(mesh.points)
    flat = [number for number, axis in enumerate(AXES) if axis not in axes]
    places[:, flat] = mesh.points[0, flat]  # in the plane of a plane mesh, wherever that is
    found: Arrays = {}
    if words["fields"]:
        inside, sampled = _sampled(mesh, places, words["fields"])
        found |= {"inside": inside, **{f"field:{name}": values for name, values in sampled.items()}}
    if words["derived"]:
        found |= _derived(words, places, _surface(mesh, words))
    return {"count": len(places)}, found


def annotate(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """Write the file anew, with all that it holds and the given arrays at its points or in its cells."""
    path, out, ending = Path(words["path"]), Path(words["out"]), words["ending"]
    if path.suffix.lower() in ARRAYS:
        array_files.write_annotated(path, out, ending, arrays, words["units"])
    else:
        vtk_files.write_grid(path, out, ending, words["location"], arrays, words["units"])
    return {}, {}


def table(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """The points of a table, an array file or a mesh, to be asked about."""
    path = Path(words["path"])
    if path.suffix.lower() in ARRAYS:
        points, _ = array_files.take_points(array_files.read_arrays(path)[0])
    else:
        points = open_mesh(words | {"beside": None}).points
    return {}, {"places": points}


JOBS: dict[str, Callable[[Words, Arrays], tuple[Words, Arrays]]] = {
    job.__name__: job for job in (look, read, probe, annotate, table)
}


def at(mesh: Mesh, name: str, location: str) -> ndarray | None:
    """A field there; one of the other location as the mean over a cell's points, or a point's cells."""
    own, other = mesh.fields(location), mesh.fields("cells" if location == "points" else "points")
    if name in own:
        return own[name]
    if name not in other or mesh.cells is None:
        return None
    values = other[name].reshape(len(other[name]), -1).astype(float)
    corners, owner = mesh.cells.corners, mesh.cells.owner
    if location == "points":
        return mean_over(values, owner, corners, len(mesh.points))
    return mean_over(values, corners, owner, mesh.cell_count)


def _value(mesh: Mesh, name: str) -> ndarray | None:
    """A number of the case: its own, or the one that a field has everywhere."""
    if name in mesh.case:
        return mesh.case[name].reshape(-1)
    for fields in (mesh.point, mesh.cell):
        if name in fields and len(fields[name]):
            values = fields[name].reshape(len(fields[name]), -1)
            if (values == values[0]).all():
                return values[0]
            raise Refused(f"{name} is to be one number of the case, but it is not the same everywhere")
    return None


def _require_good(mesh: Mesh, location: str, tolerate: Sequence[str]) -> None:
    if location == "cells" and not mesh.cell_count:
        raise Refused("holds no cells, and the fields are to be those of cells")
    for fault, what in faults_of(mesh).items():
        if fault not in tolerate:
            mend = (
                f"; mend the mesh, or tolerate it: {fault}" if fault in ("degenerate", "duplicates") else ""
            )
            raise Refused(what + mend)


def _places(mesh: Mesh, location: str) -> ndarray:
    if location == "points":
        return np.asarray(mesh.points, dtype=float)
    return mesh.centres


def _surface(mesh: Mesh, words: Words) -> Surface:
    choice = words["surface"]
    if choice == "beside":
        if words["beside"] is None:
            raise Refused("has no surface beside it; expected an .stl file of the same name")
        return oriented(vtk_files.read_grid(Path(words["beside"])))
    if choice == "own":
        return boundary(mesh)
    marks = mesh.point.get(choice)
    if marks is None:
        raise Refused(f"holds no {choice!r} at its points, which is to mark those of the surface")
    return part_of(boundary(mesh), np.any(marks.reshape(len(marks), -1), axis=1))


def _derived(words: Words, places: ndarray, surface: Surface) -> Arrays:
    found = derived_inputs(words["derived"], places, surface, body=words["surface"] == "beside")
    return {f"derived:{name}": values for name, values in found.items()}


def _marks(mesh: Mesh, location: str, places: ndarray, surface: Surface, choice: str) -> ndarray:
    """Which places are on the surface."""
    if is_surface(mesh) and choice == "own":
        return np.ones(len(places), dtype=bool)
    if location == "cells":
        raise Refused("a field of the surface alone is one of points, here fields are those of cells")
    if choice == "beside":
        near = derived_inputs(["unsigned_distance"], places, surface, body=True)["unsigned_distance"]
        return near <= NEAR * np.ptp(places, axis=0).max()
    return marks_on(mesh, surface)


def _sampled(mesh: Mesh, places: ndarray, names: Sequence[str]) -> tuple[ndarray, Arrays]:
    """Fields in between: as they run through the cells, or of the nearest point where there are no cells."""
    import pyvista
    from scipy.spatial import cKDTree

    fields = {name: at(mesh, name, "points") for name in names}
    missing = [name for name, values in fields.items() if values is None]
    if missing:
        raise Refused(f"holds no {missing[0]!r}")
    there = {name: values for name, values in fields.items() if values is not None}
    if mesh.cells is None:
        nearest = cKDTree(mesh.points).query(places)[1]
        return np.ones(len(places), dtype=bool), {name: values[nearest] for name, values in there.items()}
    grid = mesh.as_grid().copy(deep=False)
    for name, values in there.items():
        grid.point_data[name] = values.astype(float)
    sampled = pyvista.PolyData(places).sample(grid)
    inside = np.asarray(sampled.point_data["vtkValidPointMask"]).astype(bool)
    return inside, {name: np.asarray(sampled.point_data[name]) for name in there}
