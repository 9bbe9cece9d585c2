"""Small closed bodies in boxes of nodes, in the form of ShapeNet-Car."""

import numpy as np

from benchmarks.solids import cube_sphere
from linearno.data.shapenet_car_points import CarFields

CORNERS = 16


def toy_car(rng, n=4, nodes=120):
    """An ellipsoid with random axes in a cloud of nodes, a third of its points among them."""
    points, quads = cube_sphere(n)
    points = (points * rng.uniform(0.5, 1.5, 3)).astype(np.float32)
    around = rng.normal(size=(nodes, 3))
    around *= rng.uniform(2, 4, (nodes, 1)) / np.linalg.norm(around, axis=1, keepdims=True)
    shared = points[: len(points) // 3]
    volume = np.concatenate([shared, around]).astype(np.float32)
    pressure = (100 * points[:, 2] - 40).astype(np.float32)
    velocity = np.concatenate([np.zeros_like(shared), around * [0.1, 0.2, 1] + [0, 0, 20]]).astype(np.float32)
    return CarFields(points, quads, -pressure, volume, velocity)
