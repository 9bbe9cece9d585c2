"""Closed surfaces: checks, distance and winding number.

Axes: V vertices, P polygons, K corners of a polygon, T triangles, N points.
"""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.spatial import cKDTree

from linearno.core.errors import UserError

Points = Float[ndarray, "N 3"]
CANDIDATES = 8  # triangles compared at first; doubled where the nearest one may not be among them


class ClosedSurface:
    """A closed surface of polygons with outward normals.

    Quadrilaterals are divided into four triangles at their centre, so that mirror images stay mirror images.

    Args:
        vertices: positions (V, 3).
        polygons: corners (P, 3) or (P, 4) of each polygon, anticlockwise seen from outside.
        name: name of the body in messages.
    """

    def __init__(
        self, vertices: Float[ndarray, "V 3"], polygons: Int[ndarray, "P K"], name: str = "the surface"
    ):
        self.vertices, self.polygons, self.name = np.asarray(vertices, float), np.asarray(polygons), name
        if not np.isfinite(self.vertices).all():
            raise UserError(f"{name} has vertices that are NaN or infinite; expected finite coordinates")
        _require_closed(self.polygons, name)
        if self.volume <= 0:
            raise UserError(
                f"{name} is inverted: its normals point inwards (volume {self.volume:.3g}); "
                "reverse the corners of every polygon"
            )

    @cached_property
    def area_vectors(self) -> Float[ndarray, "P 3"]:
        """Normal of each polygon times its area."""
        return area_vectors(self.vertices, self.polygons)

    @property
    def volume(self) -> float:
        a, b, c = np.moveaxis(self._corners, 1, 0)
        return float((a * np.cross(b, c)).sum() / 6)

    @property
    def bounds(self) -> tuple[Float[ndarray, "3"], Float[ndarray, "3"]]:
        return self.vertices.min(axis=0), self.vertices.max(axis=0)

    @cached_property
    def vertex_normals(self) -> Float[ndarray, "V 3"]:
        """Unit normals, averages of those of the adjacent polygons weighted with their areas."""
        return vertex_normals(self.vertices, self.polygons)

    @cached_property
    def _mesh(self) -> tuple[Float[ndarray, "W 3"], Float[ndarray, "W 3"], Int[ndarray, "T 3"]]:
        """Vertices and normals with the centres of quadrilaterals, and triangles."""
        if self.polygons.shape[1] == 3:
            return self.vertices, self.vertex_normals, self.polygons
        centre = len(self.vertices) + np.arange(len(self.polygons))
        points = np.concatenate([self.vertices, self.vertices[self.polygons].mean(axis=1)])
        normals = np.concatenate(
            [self.vertex_normals, _unit(self.vertex_normals[self.polygons].mean(axis=1))]
        )
        sides = np.stack([self.polygons, np.roll(self.polygons, -1, axis=1)], axis=-1)
        fan = np.concatenate([sides, np.broadcast_to(centre[:, None, None], (*sides.shape[:2], 1))], axis=-1)
        return points, normals, fan.reshape(-1, 3)

    @property
    def _corners(self) -> Float[ndarray, "T 3 3"]:
        points, _, triangles = self._mesh
        return points[triangles]

    @cached_property
    def _tree(self) -> tuple[cKDTree, float]:
        """Tree of the centres of the triangles, and the radius of the largest one."""
        centres = self._corners.mean(axis=1)
        radius = np.linalg.norm(self._corners - centres[:, None], axis=-1).max()
        return cKDTree(centres), float(radius)

    def distance(self, points: Points) -> tuple[Float[ndarray, "N"], Points]:
        """Exact distance of each point, and the interpolated normal in its nearest point."""
        distance, normal = np.empty(len(points)), np.empty((len(points), 3))
        tree, radius = self._tree
        left, count = np.arange(len(points)), CANDIDATES
        while len(left):
            count = min(count, tree.n)
            reach, candidates = tree.query(points[left], k=count)
            found, normals = self._nearest(points[left], candidates.reshape(len(left), -1))
            distance[left], normal[left] = found, normals
            farthest = reach.reshape(len(left), -1)[:, -1]
            if count == tree.n:
                break
            left, count = left[farthest - radius < found], 2 * count
        return distance, normal

    def _nearest(self, points: Points, candidates: Int[ndarray, "N C"]) -> tuple[ndarray, ndarray]:
        corners = self._corners[candidates]
        weights = _nearest_weights(points[:, None], corners)
        gaps = np.linalg.norm((weights[..., None] * corners).sum(axis=-2) - points[:, None], axis=-1)
        best = gaps.argmin(axis=1)
        rows = np.arange(len(points))
        _, normals, triangles = self._mesh
        at_corners = normals[triangles[candidates[rows, best]]]
        return gaps[rows, best], _unit((weights[rows, best][..., None] * at_corners).sum(axis=1))

    def inside_columns(
        self, x: Float[ndarray, "X"], y: Float[ndarray, "Y"], z: Float[ndarray, "Z"]
    ) -> Bool[ndarray, "X Y Z"]:
        """Points of a grid inside of the surface: winding number above 1/2."""
        return self.winding_columns(x, y, z) > 0

    def winding_columns(
        self, x: Float[ndarray, "X"], y: Float[ndarray, "Y"], z: Float[ndarray, "Z"]
    ) -> Int[ndarray, "X Y Z"]:
        """Winding number at the points of a grid: signed crossings of rays along z.

        Args:
            x, y, z: increasing coordinates.
        """
        corners = self._corners
        crossings = np.zeros((len(x), len(y), len(z) + 1), np.int32)
        lower, upper = corners.min(axis=1), corners.max(axis=1)
        first = np.stack([np.searchsorted(x, lower[:, 0]), np.searchsorted(y, lower[:, 1])], axis=-1)
        last = np.stack(
            [np.searchsorted(x, upper[:, 0], "right"), np.searchsorted(y, upper[:, 1], "right")], axis=-1
        )
        spans = (last - first).max(axis=0, initial=0)
        for i in range(spans[0]):
            for j in range(spans[1]):
                column = first + np.array([i, j])
                chosen = np.flatnonzero((column < last).all(axis=1))
                at = column[chosen]
                rays = np.stack([x[at[:, 0]], y[at[:, 1]]], axis=-1)
                hit, sign, height = _crossings(rays, corners[chosen])
                level = np.searchsorted(z, height[hit])
                np.add.at(crossings, (at[hit, 0], at[hit, 1], level), sign[hit])
        # A ray upwards enters through a triangle whose normal points down, and leaves at one that points up.
        return -crossings.cumsum(axis=2)[..., :-1]


def area_vectors(vertices: Float[ndarray, "V 3"], polygons: Int[ndarray, "P K"]) -> Float[ndarray, "P 3"]:
    """Normal of each triangle or quadrilateral times its area."""
    a, b, c, *rest = np.moveaxis(vertices[polygons], 1, 0)
    return np.cross(c - a, rest[0] - b) / 2 if rest else np.cross(b - a, c - a) / 2


def vertex_normals(vertices: Float[ndarray, "V 3"], polygons: Int[ndarray, "P K"]) -> Float[ndarray, "V 3"]:
    """Unit normals at vertices, averages of those of the adjacent polygons weighted with their areas."""
    area, total = area_vectors(vertices, polygons), np.zeros_like(vertices)
    for corner in polygons.T:
        np.add.at(total, corner, area)
    return _unit(total)


def _require_closed(polygons: Int[ndarray, "P K"], name: str) -> None:
    """Raise unless every edge belongs to two polygons that run through it in opposite directions."""
    begin, end = polygons.astype(np.int64), np.roll(polygons, -1, axis=1).astype(np.int64)
    size = int(polygons.max()) + 1 if polygons.size else 0
    forward, backward = (begin * size + end).ravel(), (end * size + begin).ravel()
    counts = np.unique(forward, return_counts=True)[1]
    if not polygons.size or (counts > 1).any() or not np.array_equal(np.sort(forward), np.sort(backward)):
        unmatched = len(np.setdiff1d(forward, backward)) + int((counts > 1).sum())
        raise UserError(
            f"{name} is not closed: {unmatched} of its {forward.size} edges do not join two polygons that "
            "run through them in opposite directions; close the holes and orient all polygons alike"
        )


def _nearest_weights(
    p: Float[ndarray, "N 1 3"], corners: Float[ndarray, "N C 3 3"]
) -> Float[ndarray, "N C 3"]:
    """Barycentric coordinates of the point of each triangle that is nearest to p."""
    a, b, c = corners[..., 0, :], corners[..., 1, :], corners[..., 2, :]
    ab, ac, ap = b - a, c - a, p - a
    d11, d12, d22 = _dot(ab, ab), _dot(ab, ac), _dot(ac, ac)
    d1, d2 = _dot(ab, ap), _dot(ac, ap)
    det = np.maximum(d11 * d22 - d12 * d12, 1e-30)
    v, w = (d22 * d1 - d12 * d2) / det, (d11 * d2 - d12 * d1) / det
    inner = np.stack([1 - v - w, v, w], axis=-1)
    best = np.where((inner >= 0).all(axis=-1, keepdims=True), inner, np.nan)
    gap = np.where(np.isnan(best[..., 0]), np.inf, 0.0)
    for i, j in ((0, 1), (1, 2), (2, 0)):
        start, side = corners[..., i, :], corners[..., j, :] - corners[..., i, :]
        t = np.clip(_dot(p - start, side) / np.maximum(_dot(side, side), 1e-30), 0, 1)
        away = p - start - t[..., None] * side
        edge = np.zeros_like(inner)
        edge[..., i], edge[..., j] = 1 - t, t
        closer = _dot(away, away) < gap
        best = np.where(closer[..., None], edge, best)
        gap = np.where(closer, _dot(away, away), gap)
    return best


def _crossings(
    rays: Float[ndarray, "N 2"], corners: Float[ndarray, "N 3 3"]
) -> tuple[Bool[ndarray, "N"], Int[ndarray, "N"], Float[ndarray, "N"]]:
    """Whether rays along z through (x, y) cross triangles; sign of the normal's z component; height.

    Two triangles decide about a common edge with the same arithmetic, so that a ray through it crosses
    exactly one of them, or both in opposite directions.
    """
    sides = []
    for i, j in ((0, 1), (1, 2), (2, 0)):
        a, b = corners[:, i], corners[:, j]
        swap = (a[:, 0] > b[:, 0]) | ((a[:, 0] == b[:, 0]) & (a[:, 1] > b[:, 1]))
        low, high = np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)
        area = (high[:, 0] - low[:, 0]) * (rays[:, 1] - low[:, 1])
        area = area - (high[:, 1] - low[:, 1]) * (rays[:, 0] - low[:, 0])
        sides.append(np.where(area > 0, 1, -1) * np.where(swap, -1, 1))
    hit = (sides[0] == sides[1]) & (sides[1] == sides[2])
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    upright = np.where(normal[:, 2] == 0, np.inf, normal[:, 2])
    slope = normal[:, :2] / upright[:, None]
    height = corners[:, 0, 2] - (slope * (rays - corners[:, 0, :2])).sum(axis=1)
    return hit, sides[0], height


def _dot(a: ndarray, b: ndarray) -> ndarray:
    return np.einsum("...k,...k->...", a, b)


def _unit(vectors: ndarray) -> ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
