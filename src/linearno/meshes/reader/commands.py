"""Functions on mesh files, called in the reader process.

Axes: K points or cells of a case, Q query points.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader import array_files, vtk_files
from linearno.meshes.reader.features import Position, derived_inputs, position_inputs
from linearno.meshes.reader.geometry import (
    AXES,
    Surface,
    axes_of,
    boundary,
    cell_dimension,
    is_surface,
    marked_part,
    orient_normals,
)
from linearno.meshes.reader.io import faults_of, is_array_file, open_mesh, read_blocks
from linearno.meshes.reader.mesh import Arrays, CaseFile, Cells, Mesh, mean_over
from linearno.meshes.reader.patches import marks_of, names_in, patch_surface
from linearno.meshes.reader.plane import to_space
from linearno.meshes.reader.quantities import Functional, weights_of

MAX_RELATIVE_DISTANCE = 1e-6  # of surface points from the surface, over the extent of the mesh
TOLERABLE = ("degenerate", "duplicates")


@dataclass(frozen=True)
class MeshRequest:
    """Values to read from a mesh file.

    Args:
        location: "points" or "cells".
        fields: names of fields at that location.
        numbers: names of numbers of the whole case.
        derived: names of inputs derived from the surface.
        surface: "own" (boundary of the mesh), "beside" (the `.stl` file), patches of the boundary separated
            by commas, or the field that marks it.
        mark_surface: whether to return the mask of the points on the surface.
        tolerate: faults of the mesh that are not errors.
        plane: whether a mesh that is one cell thick, or a wedge, is reduced to its plane.
        position: how positions are transformed, for the inputs that are derived from them.
        quantities: integral quantities by name.
    """

    location: str = "points"
    fields: Sequence[str] = ()
    numbers: Sequence[str] = ()
    derived: Sequence[str] = ()
    surface: str = "own"
    mark_surface: bool = False
    tolerate: Sequence[str] = ()
    plane: bool = True
    position: Position | None = None
    quantities: Mapping[str, Functional] = field(default_factory=dict)


@dataclass
class MeshValues:
    """Arrays of a mesh; requested values that are not in the file are missing.

    Args:
        points: coordinates (K, 3) of points, or centres of cells.
        fields: fields (K,) or (K, C) by name.
        numbers: numbers (C,) of the whole case by name.
        derived: derived inputs by name, (K,) or (K, 3).
        surface: mask (K,) of the points on the surface.
        inside: mask (Q,) of the query points inside the mesh.
        axes: axes along which the mesh has an extent.
        units: unit of each field.
        known: names of all fields.
        patches: names of the patches of the boundary.
        topology: hash of the cells, which is the same for meshes that differ in coordinates only.
        time: time of the frame, if the file has several.
        weights: weights (K,) of each integral quantity whose patches are there.
    """

    points: ndarray
    fields: Arrays = field(default_factory=dict)
    numbers: Arrays = field(default_factory=dict)
    derived: Arrays = field(default_factory=dict)
    surface: ndarray | None = None
    inside: ndarray | None = None
    axes: list[str] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    patches: list[str] = field(default_factory=list)
    topology: str = ""
    time: float | None = None
    weights: Arrays = field(default_factory=dict)


@dataclass
class FieldSummary:
    """Summary of a field of one file, or merged over several files.

    Args:
        name: name of the field.
        location: points, cells, case (its file), or table (a cases.csv).
        components: numbers per point.
        low: minimum of each component; empty if there are no finite values.
        high: maximum of each component.
        missing: number of points without a finite value.
        constant: whether the field is constant in each case.
        integer: whether the type is an integer.
        surface_only: zero or not finite at all inner points, but not on the surface.
        units: units given in the files.
        cases: number of cases with the field.
        mixed: whether the number of components differs between cases.
    """

    name: str
    location: str
    components: int
    low: list[float]
    high: list[float]
    missing: int = 0
    constant: bool = True
    integer: bool = False
    surface_only: bool = False
    units: set[str] = field(default_factory=set)
    cases: int = 1
    mixed: bool = False

    @property
    def varies(self) -> bool:
        return self.low != self.high

    @property
    def is_mask(self) -> bool:
        return self.integer and self.components == 1 and (self.low, self.high) == ([0.0], [1.0])


@dataclass
class MeshSummary:
    """Contents of a file.

    Args:
        kind: "arrays", or the name of the VTK data set.
        points: number of points.
        cells: number of cells.
        axes: axes along which the mesh has an extent.
        cell_dimension: highest dimension of a cell.
        is_surface: whether the mesh is a surface in space.
        open_edges: number of open edges of each available surface, "own" and "beside".
        fields: summaries of the fields.
        faults: message of each fault.
        patches: number of faces of each patch of the boundary, by name.
        thin: how the mesh was reduced to its plane, if it was.
        times: times of the frames.
        boxes: lowest and highest corner of each patch.
        center: median of the points.
        spread: half the range between the quartiles of the points, of the axis where it is largest.
        extent: largest extent.
    """

    kind: str
    points: int
    cells: int
    axes: list[str]
    cell_dimension: int
    is_surface: bool
    open_edges: dict[str, int]
    fields: list[FieldSummary]
    faults: dict[str, str]
    patches: dict[str, int] = field(default_factory=dict)
    thin: str | None = None
    times: list[float] = field(default_factory=list)
    boxes: dict[str, list[list[float]]] = field(default_factory=dict)
    center: list[float] = field(default_factory=list)
    spread: float = 0.0
    extent: float = 0.0

    def count(self, location: str) -> int:
        return self.points if location == "points" else self.cells


def read(file: CaseFile, request: MeshRequest) -> MeshValues:
    """Read points, fields, numbers and derived inputs of a case."""
    mesh = open_mesh(file, plane=request.plane)
    _require_no_faults(mesh, request)
    points = np.asarray(mesh.points, dtype=float) if request.location == "points" else mesh.centres
    values = MeshValues(points, axes=axes_of(mesh.points), units=mesh.units)
    values.known = [*mesh.fields["points"], *mesh.fields["cells"]]
    values.patches, values.topology = list(mesh.patches), _topology(mesh)
    if mesh.times:
        values.time = mesh.times[-1 if file.frame is None else file.frame]
    values.fields = _find_existing(request.fields, lambda name: field_at(mesh, name, request.location))
    values.numbers = _find_existing(request.numbers, lambda name: _number(mesh, name))
    values.derived = _derived(file, mesh, request, points)
    if request.mark_surface:
        surface = _surface(file, mesh, request.surface)
        values.surface = _on_surface(mesh, points, surface, request)
    for name, functional in request.quantities.items():
        if functional.patch and not names_in(functional.patch, mesh):
            continue  # a missing patch
        values.weights[name] = weights_of(mesh, functional, request.location)
    return values


def probe(file: CaseFile, request: MeshRequest, points: ndarray) -> MeshValues:
    """Interpolate fields and derived inputs of a case at query points (Q, 3)."""
    mesh = open_mesh(file, plane=request.plane)
    points, axes = points.astype(float), axes_of(mesh.points)
    flat = [number for number, axis in enumerate(AXES) if axis not in axes]
    points[:, flat] = mesh.points[0, flat]  # project onto the plane of a plane mesh
    values = MeshValues(points)
    if request.fields:
        values.inside, values.fields = _interpolate(mesh, points, request.fields)
    values.derived = _derived(file, mesh, request, points)
    return values


def _derived(file: CaseFile, mesh: Mesh, request: MeshRequest, points: ndarray) -> Arrays:
    """Inputs derived from the surface and from positions."""
    found, position = {}, request.position
    if position is not None:
        found = position_inputs(request.derived, points, position)
    if names := [name for name in request.derived if name not in found]:
        surface, body = _surface(file, mesh, request.surface), request.surface == "beside"
        scale = 1.0 if position is None else position.scale
        found |= derived_inputs(names, points, surface, body=body, scale=scale)
    return found


def interpolate(file: CaseFile, points: ndarray, values: ndarray, location: str, plane: bool) -> ndarray:
    """Values (K, C) at the points or in the cells of a mesh, interpolated at query points (Q, 3)."""
    mesh = open_mesh(file, plane=plane)
    points, axes = points.astype(float), axes_of(mesh.points)
    flat = [number for number, axis in enumerate(AXES) if axis not in axes]
    points[:, flat] = mesh.points[0, flat]
    bare = replace(mesh, fields={"points": {}, "cells": {}, "case": {}})
    bare.fields[location]["value"] = values
    inside, found = _interpolate(bare, points, ["value"])
    if outside := int((~inside).sum()):
        raise UserError(
            f"does not contain {outside} of {len(points)} query points; this model predicts inside it only"
        )
    return found["value"].reshape(len(points), -1)


def shape_of(file: CaseFile) -> tuple[ndarray, Cells | None]:
    """Points (N, 3) and cells of a case, without fields."""
    mesh = open_mesh(file)
    return np.asarray(mesh.points, dtype=float), mesh.cells


def points_of(file: CaseFile) -> ndarray:
    """The points (Q, 3) of a table, an array file or a mesh."""
    if file.path.suffix.lower() in array_files.SUFFIXES:
        return array_files.take_points(array_files.read_arrays(file.path)[0])[0]
    return open_mesh(file).points


def annotate(
    file: CaseFile,
    out: Path,
    suffix: str,
    location: str,
    arrays: Arrays,
    units: dict[str, str],
    plane: bool = True,
) -> None:
    """Write the contents of the file and further arrays at its points or in its cells to `out`.

    Arrays of a mesh that was reduced to its plane are written to the mesh in space.
    """
    if is_array_file(file):
        array_files.write_annotated(file.path, out, suffix, arrays, units)
        return
    if lift := open_mesh(file, plane=plane).lift:
        local = {name: part for name, part in arrays.items() if not name.startswith(vtk_files.CASE_PREFIX)}
        arrays = arrays | to_space(lift, location, local)
    vtk_files.write_grid(read_blocks(file).grid, out, suffix, location, arrays, units)


def summarise(file: CaseFile) -> MeshSummary:
    """Summarise a file, for `linearno init`."""
    mesh = open_mesh(file)
    usable = len(mesh.points) > 0 and np.isfinite(mesh.points).all()
    surface = boundary(mesh) if usable and cell_dimension(mesh) > 1 else None
    marks = None if surface is None or is_surface(mesh) else surface.marks(len(mesh.points))
    open_edges = {} if surface is None else {"own": surface.open_edges}
    if file.surface is not None:
        open_edges["beside"] = orient_normals(vtk_files.read_grid(file.surface)).open_edges
    return MeshSummary(
        mesh.kind,
        len(mesh.points),
        mesh.cell_count,
        axes_of(mesh.points) if usable else [],
        cell_dimension(mesh),
        is_surface(mesh),
        open_edges,
        [
            _summary(mesh, name, location, values, marks if location == "points" else None)
            for location, fields in mesh.fields.items()
            for name, values in fields.items()
            if location != "case" or values.size
        ],
        faults_of(mesh),
        {name: len(cells.types) for name, cells in mesh.patches.items()},
        None if mesh.lift is None else mesh.lift.thin,
        mesh.times,
        {name: _box(mesh.points[cells.corners]) for name, cells in mesh.patches.items()},
        *(_spread(mesh.points) if usable else ([], 0.0, 0.0)),
    )


def _box(points: ndarray) -> list[list[float]]:
    return [points.min(axis=0).tolist(), points.max(axis=0).tolist()]


def _spread(points: ndarray) -> tuple[list[float], float, float]:
    """Median of the points, half the range between their quartiles, and their extent."""
    low, center, high = np.quantile(points, (0.25, 0.5, 0.75), axis=0)
    return center.tolist(), float((high - low).max() / 2), float(np.ptp(points, axis=0).max())


def _topology(mesh: Mesh) -> str:
    """Hash of the cells; empty for a point cloud, whose points have no order in common with another."""
    if mesh.cells is None:
        return ""
    digest = sha256(str(len(mesh.points)).encode())
    for part in mesh.cells:
        digest.update(np.ascontiguousarray(part, dtype=np.int64).tobytes())
    return digest.hexdigest()


def field_at(mesh: Mesh, name: str, location: str) -> ndarray | None:
    """A field at points or in cells, averaged from the other location if necessary."""
    other = mesh.fields["cells" if location == "points" else "points"]
    if name in mesh.fields[location]:
        return mesh.fields[location][name]
    if name not in other or mesh.cells is None:
        return None
    values = other[name].reshape(len(other[name]), -1).astype(float)
    corners, owner = mesh.cells.corners, mesh.cells.owner
    if location == "points":
        return mean_over(values, owner, corners, len(mesh.points))
    return mean_over(values, corners, owner, mesh.cell_count)


def _find_existing(names: Sequence[str], find: Callable[[str], ndarray | None]) -> Arrays:
    return {name: values for name in names if (values := find(name)) is not None}


def _number(mesh: Mesh, name: str) -> ndarray | None:
    """A number of the case, from its field data or a constant field."""
    if name in mesh.fields["case"]:
        return mesh.fields["case"][name].reshape(-1)
    for location in ("points", "cells"):
        values = mesh.fields[location].get(name)
        if values is not None and len(values):
            rows = values.reshape(len(values), -1)
            if (rows == rows[0]).all():
                return rows[0]
            raise UserError(f"has a field {name} that varies; expected one number of the case")
    return None


def _require_no_faults(mesh: Mesh, request: MeshRequest) -> None:
    if request.location == "cells" and not mesh.cell_count:
        raise UserError("holds no cells; expected fields in cells")
    for fault, message in faults_of(mesh).items():
        if fault not in request.tolerate:
            hint = f"; repair the mesh, or tolerate it: {fault}" if fault in TOLERABLE else ""
            raise UserError(message + hint)


def _surface(file: CaseFile, mesh: Mesh, choice: str) -> Surface:
    if choice == "beside":
        if file.surface is None:
            raise UserError("has no surface file; expected an .stl file of the same name")
        return orient_normals(vtk_files.read_grid(file.surface))
    if choice == "own":
        return boundary(mesh)
    if names := names_in(choice, mesh):
        return patch_surface(mesh, names)
    marks = mesh.fields["points"].get(choice)
    if marks is None:
        there = f"; its patches are {', '.join(mesh.patches)}" if mesh.patches else ""
        raise UserError(
            f"holds no {choice!r}; expected a patch of its boundary, or a field that marks the points of the "
            f"surface{there}"
        )
    return marked_part(boundary(mesh), np.any(marks.reshape(len(marks), -1), axis=1))


def _on_surface(mesh: Mesh, points: ndarray, surface: Surface, request: MeshRequest) -> ndarray:
    """Mask of the points on the surface."""
    if is_surface(mesh) and request.surface == "own":
        return np.ones(len(points), dtype=bool)
    if request.location == "cells":
        raise UserError("holds fields in cells; a field of the surface alone must be one of points")
    if request.surface == "beside":
        distance = derived_inputs(["unsigned_distance"], points, surface, body=True)["unsigned_distance"]
        return distance <= MAX_RELATIVE_DISTANCE * np.ptp(points, axis=0).max()
    if names := names_in(request.surface, mesh):
        return marks_of(mesh, names)
    return surface.marks(len(mesh.points))


def _interpolate(mesh: Mesh, points: ndarray, names: Sequence[str]) -> tuple[ndarray, Arrays]:
    """Mask of the points inside the mesh, and fields interpolated in its cells (nearest point in a cloud)."""
    import pyvista
    from scipy.spatial import cKDTree

    fields = _find_existing(names, lambda name: field_at(mesh, name, "points"))
    if missing := [name for name in names if name not in fields]:
        raise UserError(f"holds no {missing[0]!r}")
    if mesh.cells is None:
        nearest = cKDTree(mesh.points).query(points)[1]
        return np.ones(len(points), dtype=bool), {name: values[nearest] for name, values in fields.items()}
    grid = mesh.as_grid().copy(deep=False)
    for name, values in fields.items():
        grid.point_data[name] = values.astype(float)
    sampled = pyvista.PolyData(points).sample(grid)
    inside = np.asarray(sampled.point_data["vtkValidPointMask"]).astype(bool)
    return inside, {name: np.asarray(sampled.point_data[name]) for name in fields}


def _summary(mesh: Mesh, name: str, location: str, values: ndarray, marks: ndarray | None) -> FieldSummary:
    columns = values.reshape(1 if location == "case" else len(values), -1).astype(float)
    finite = np.isfinite(columns)
    has_range = len(columns) and finite.any(axis=0).all()
    unset = (~finite | (columns == 0)).all(axis=1)
    surface_only = marks is not None and not marks.all() and unset[~marks].all() and not unset[marks].all()
    return FieldSummary(
        name,
        location,
        columns.shape[1],
        np.where(finite, columns, np.inf).min(axis=0).tolist() if has_range else [],
        np.where(finite, columns, -np.inf).max(axis=0).tolist() if has_range else [],
        int((~finite).any(axis=1).sum()),
        bool(len(columns) and finite.all() and (columns == columns[0]).all()),
        values.dtype.kind in "iub",
        bool(surface_only),
        {mesh.units[name]} if name in mesh.units else set(),
    )


def frame_count(file: CaseFile) -> int:
    """Number of times in the files of a simulation; 0 without times."""
    return 0 if is_array_file(file) else len(read_blocks(file).times)
