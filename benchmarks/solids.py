"""Closed surfaces for checks of solvers."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


def cube_sphere(n: int, radius: float = 1.0) -> tuple[Float[ndarray, "V 3"], Int[ndarray, "P 4"]]:
    """Vertices and quadrilaterals of a sphere: the sides of a cube, n × n each, moved to the radius."""
    tangent = np.tan(np.linspace(-1, 1, n + 1) * np.pi / 4)
    a, b = np.meshgrid(tangent, tangent, indexing="ij")
    number = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    quad = np.stack([number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]], axis=-1).reshape(
        -1, 4
    )
    points: list[ndarray] = []
    quads: list[ndarray] = []
    for axis in range(3):
        for sign in (-1, 1):
            side = np.stack([np.full_like(a, sign), a, b], axis=-1).reshape(-1, 3)
            quads.append(quad[:, ::sign] + len(points) * (n + 1) ** 2)
            points.append(np.roll(side, axis, axis=1))
    every = np.concatenate(points)
    vertices, index = np.unique(every.round(9), axis=0, return_inverse=True)
    vertices *= radius / np.linalg.norm(vertices, axis=1, keepdims=True)
    return vertices, index.reshape(-1)[np.concatenate(quads)]
