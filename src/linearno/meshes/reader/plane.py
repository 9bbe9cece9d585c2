"""Reduce a mesh in space that is one cell thick, or a wedge around an axis, to its plane.

Axes: N3 points and E3 cells in space, N points and E cells in the plane.
"""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError
from linearno.meshes.reader.geometry import AXES, cell_dimension
from linearno.meshes.reader.mesh import Arrays, Cells, Lift, Mesh

TOLERANCE = 1e-5  # of coordinates, over the extent of the mesh or the thickness
SAME = 1e-2  # largest difference of a field between the two layers, over its range
MAX_WEDGE = np.radians(12.0)  # angle between the two planes of a wedge
MAX_THICKNESS = (
    2.0  # times the larger extent of the plane, so that a single layer of long bars stays in space
)


class _Layers(NamedTuple):
    """The two layers of points of a thin mesh.

    Args:
        plane: coordinates (N3, 2) in the plane.
        lower: mask (N3,) of the points of the lower layer.
        axes: numbers of the axes of the plane.
        thin: what was reduced, for messages.
        angles: angle (N3,) of each point about the axis of rotation; None without one.
        axis: number of that axis.
    """

    plane: ndarray
    lower: ndarray
    axes: tuple[int, int]
    thin: str
    angles: ndarray | None = None
    axis: int = 0


def reduce_to_plane(mesh: Mesh) -> Mesh:
    """The mesh in its plane with the way back in `lift`; the mesh itself if it is not thin."""
    if cell_dimension(mesh) != 3 or not len(mesh.points) or not np.isfinite(mesh.points).all():
        return mesh
    layers = _flat_layers(mesh.points) or _wedge_layers(mesh.points)
    if layers is None:
        return mesh
    faces, owner = _faces_of(mesh, layers.lower)
    if len(faces) != mesh.cell_count or len(np.unique(owner)) != mesh.cell_count:
        return mesh  # a cell without a face in the layer: more than one cell thick
    return _reduced(mesh, layers, faces, owner)


def _flat_layers(points: ndarray) -> _Layers | None:
    extent = np.ptp(points, axis=0)
    for axis in np.argsort(extent).tolist():
        values, across = points[:, axis], [k for k in range(3) if k != axis]
        low, high = values.min(), values.max()
        near = TOLERANCE * (high - low)
        lower, upper = values <= low + near, values >= high - near
        paired = lower.sum() == upper.sum() and (lower | upper).all()
        if high > low and paired and high - low <= MAX_THICKNESS * extent[across].max():
            thin = f"one cell thick along {AXES[axis]}"
            return _Layers(points[:, across], lower, (across[0], across[1]), thin)
    return None


def _wedge_layers(points: ndarray) -> _Layers | None:
    """Layers of a mesh between two planes through a coordinate axis, symmetric to a coordinate plane."""
    for axis in range(3):
        for radial in (k for k in range(3) if k != axis):
            other = 3 - axis - radial
            radius = np.hypot(points[:, radial], points[:, other])
            scale = radius.max()
            angle = np.arctan2(points[:, other], points[:, radial])
            off = radius > TOLERANCE * scale
            if scale == 0 or not off.any() or (points[off, radial] <= 0).any():
                continue
            half = np.abs(angle[off]).max()
            if not 0 < half <= MAX_WEDGE / 2 or not np.allclose(np.abs(angle[off]), half, rtol=1e-3):
                continue
            order = sorted([axis, radial])
            plane = np.stack([points[:, axis] if k == axis else radius for k in order], axis=1)
            angles = np.where(off, angle, 0.0)
            thin = f"a wedge of {np.degrees(2 * half):.3g}° around {AXES[axis]}"
            return _Layers(plane, ~off | (angle < 0), (order[0], order[1]), thin, angles, axis)
    return None


def _faces_of(mesh: Mesh, lower: ndarray) -> tuple[list[ndarray], ndarray]:
    """Faces of the boundary with all corners in the lower layer, in point numbers, and their cells."""
    grid = mesh.as_grid().copy(deep=False)
    grid.point_data["number"] = np.arange(len(mesh.points))
    grid.cell_data["number"] = np.arange(mesh.cell_count)
    skin = grid.extract_surface(pass_pointid=False, pass_cellid=False, nonlinear_subdivision=0)
    number, owner = np.asarray(skin.point_data["number"]), np.asarray(skin.cell_data["number"])
    corners, ends = number[np.asarray(skin.GetPolys().GetConnectivityArray())], _offsets(skin)
    inside = np.add.reduceat(~lower[corners], ends[:-1]) == 0 if len(corners) else np.empty(0, dtype=bool)
    chosen = np.flatnonzero(inside)
    return [corners[ends[k] : ends[k + 1]] for k in chosen], owner[chosen]


def _offsets(skin: object) -> ndarray:
    return np.asarray(skin.GetPolys().GetOffsetsArray())  # type: ignore[attr-defined]


def _reduced(mesh: Mesh, layers: _Layers, faces: list[ndarray], owner: ndarray) -> Mesh:
    used = np.unique(np.concatenate(faces))
    index = _nearest_in_plane(layers.plane, used)
    points = np.zeros((len(used), 3))
    points[:, list(layers.axes)] = layers.plane[used]
    order = np.argsort(owner)  # plane cells in the order of the cells in space
    sizes = np.array([len(faces[k]) for k in order])
    corners = index[np.concatenate([faces[k] for k in order])]
    kinds = np.array([{3: 5, 4: 9}.get(size, 7) for size in sizes.tolist()], dtype=np.uint8)
    flat = Mesh(points, mesh.kind, Cells(kinds, corners, np.concatenate([[0], np.cumsum(sizes)])))
    lift = Lift(index, np.arange(mesh.cell_count), layers.thin, layers.axes, layers.angles, layers.axis)
    for name, values in mesh.fields["points"].items():
        values = _turned(values, lift, -1)
        means = _mean_by(values, index, len(used))
        if not _equal_layers(values, means[index], lift):
            return mesh
        flat.fields["points"][name] = means.astype(values.dtype)
    flat.fields["cells"], flat.fields["case"] = dict(mesh.fields["cells"]), mesh.fields["case"]
    flat.units, flat.times = mesh.units, mesh.times
    flat.patches = {name: part for name, cells in mesh.patches.items() if (part := _edges(cells, index))}
    flat.lift = lift
    flat.require_consistent()
    return flat


def _nearest_in_plane(plane: ndarray, used: ndarray) -> ndarray:
    """Index in `used` of the point at the place in the plane of each point in space."""
    from scipy.spatial import cKDTree

    distance, index = cKDTree(plane[used]).query(plane)
    if distance.max() > TOLERANCE * np.ptp(plane, axis=0).max():
        raise UserError("is one cell thick, but its two layers of points do not lie over each other")
    return index


def _mean_by(values: ndarray, index: ndarray, count: int) -> ndarray:
    columns = values.reshape(len(values), -1).T
    sums = np.stack([np.bincount(index, column, count) for column in columns], axis=1)
    return (sums / np.bincount(index, minlength=count)[:, None]).reshape(count, *values.shape[1:])


def _edges(patch: Cells, index: ndarray) -> Cells | None:
    """A patch in space as edges in the plane; None for one that lies in the plane itself."""
    edges = set()
    for first, last in zip(patch.offsets[:-1], patch.offsets[1:], strict=True):
        ends = np.unique(index[patch.corners[first:last]])
        if len(ends) > 2:
            return None
        if len(ends) == 2:
            edges.add((int(ends[0]), int(ends[1])))
    if not edges:
        return None
    corners = np.array(sorted(edges)).reshape(-1)
    return Cells(np.full(len(edges), 3, dtype=np.uint8), corners, np.arange(len(edges) + 1) * 2)


def _equal_layers(values: ndarray, means: ndarray, lift: Lift) -> bool:
    """Whether a field is the same in both layers, except for the component of a vector across the plane."""
    columns, means = values.reshape(len(values), -1), means.reshape(len(values), -1)
    kept = list(lift.plane) if columns.shape[1] == 3 else range(columns.shape[1])
    finite = np.isfinite(columns).all()
    return bool(
        not finite
        or (np.abs(columns - means)[:, kept] <= SAME * np.ptp(columns[:, kept], axis=0).max() + 1e-30).all()
    )


def _turned(values: ndarray, lift: Lift, sign: int) -> ndarray:
    """Vectors (N3, 3) of a wedge, turned into its plane (sign -1) or back (1); other fields unchanged."""
    if lift.angles is None or values.ndim != 2 or values.shape[1] != 3:
        return values
    radial = next(k for k in lift.plane if k != lift.axis)
    other = 3 - lift.axis - radial
    cosine, sine = np.cos(lift.angles), sign * np.sin(lift.angles)
    turned = values.astype(float)
    turned[:, radial] = cosine * values[:, radial] - sine * values[:, other]
    turned[:, other] = sine * values[:, radial] + cosine * values[:, other]
    return turned


def to_space(lift: Lift, location: str, arrays: Arrays) -> Arrays:
    """Arrays of a reduced mesh at the points, or in the cells, of the mesh in space."""
    if location == "cells":
        return {name: values[lift.cells] for name, values in arrays.items()}
    return {name: _turned(values[lift.points], lift, 1) for name, values in arrays.items()}
