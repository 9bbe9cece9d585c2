"""Smooth flows with boundary layers around NACA airfoils, in place of the solver's, on the solver's grids."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy import ndarray

from linearno.data.airfoil_nodes import distance_from
from linearno.data.airfrans_sets import GridCells
from linearno.solvers.rans import AirfoilCase, AirfoilFlows, refined_nodes

LAYER = 0.02  # thickness of the boundary layer in chords
SLOPE = 3.0  # of the speed on the wall, over speed of the stream and thickness


def exact_fields(case: AirfoilCase, points: ndarray, distance: ndarray) -> ndarray:
    """Velocity, pressure and turbulent viscosity (…, 4) of a made-up flow."""
    angle = np.deg2rad(case.angle)
    profile = 1 - np.exp(-SLOPE * distance / LAYER)
    stream = case.speed * np.array([np.cos(angle), np.sin(angle)])
    bend = np.exp(-((points - np.array([0.2, 0.1])) ** 2).sum(axis=-1))
    pressure = case.speed**2 * (0.3 * bend - 0.2 * points[..., 1])
    nut = 1e-3 * distance * np.exp(-distance / LAYER)
    velocity = profile[..., None] * (1 + 0.2 * bend[..., None]) * stream
    return np.concatenate([velocity, pressure[..., None], nut[..., None]], axis=-1)


def made_up_flows(
    cases: Sequence[AirfoilCase], cells: GridCells, *, turbulence: str = "sst", device: object = "cpu"
) -> AirfoilFlows:
    """`exact_fields` in the cells of the grids of the cases."""
    nodes = refined_nodes(cases, cells, 1)
    middle = (nodes[:, 1:, 1:] + nodes[:, :-1, 1:] + nodes[:, 1:, :-1] + nodes[:, :-1, :-1]).numpy() / 4
    fields = []
    for case, points, grid in zip(cases, middle, nodes.numpy(), strict=True):
        wall = grid[cells.wake : -1 - cells.wake, 0]
        distance = distance_from(wall, points.reshape(-1, 2)).reshape(points.shape[:2])
        fields.append(exact_fields(case, points, distance))
    values, one = torch.from_numpy(np.stack(fields)), torch.ones(len(cases), dtype=torch.float64)
    return AirfoilFlows(
        nodes=nodes,
        velocity=values[..., :2],
        pressure=values[..., 2],
        nut=values[..., 3],
        lift=one,
        drag=one,
        pressure_drag=one,
        friction=torch.ones(len(cases), 2 * cells.side, dtype=torch.float64),
        residual=1e-6 * one,
        steps=torch.full((len(cases),), 20),
        steady=torch.ones(len(cases), dtype=torch.bool),
        wake=cells.wake,
    )
