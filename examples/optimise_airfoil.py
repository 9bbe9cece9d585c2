"""Raise lift over drag of an airfoil by gradients through a surrogate; check the result with the solver.

python examples/optimise_airfoil.py     a quarter of an hour on two cores, minutes on a GPU

The surrogate is a small LinearNO on a few generated airfoils: it shows the method. Lift and drag are
integrals of its fields, differentiable in the positions of the nodes, and these in the NACA digits.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linearno import load
from linearno.core.config import override
from linearno.core.device import available_cores, resolve_device
from linearno.data import DATASETS, Batch
from linearno.data.airfoil_nodes import AirfoilMesh, CellFields, refine_flow
from linearno.data.airfrans_metrics import coefficients, corners_as_edges
from linearno.data.airfrans_sets import grid_cells
from linearno.experiment import run
from linearno.inference.bundle import Bundle
from linearno.recipes import recipe
from linearno.solvers.rans import AirfoilCase, airfoil_flows, refined_nodes
from linearno.training.predict import predict_batch

START = AirfoilCase((2.0, 4.0, 12.0), 60.0, 2.0)
LOW = torch.tensor([0.5, 2.5, 8.0, -1.0], dtype=torch.float64)  # camber, its position, thickness, angle
HIGH = torch.tensor([6.0, 6.5, 18.0, 8.0], dtype=torch.float64)
REACH = 0.25  # chords over which the mesh follows the airfoil
LEAST_DRAG = 0.006  # a surrogate that predicts less is not believed


def contour(design: Tensor, parameter: Tensor) -> Tensor:
    """Points (W, 2) of a four-digit airfoil, from the trailing edge at −π along the lower side to π."""
    camber, position, thickness = design[0] / 100, design[1] / 10, design[2] / 100
    x = (1 - parameter.cos()) / 2
    front, rear = camber / position**2, camber / (1 - position) ** 2
    height = torch.where(
        x < position, front * (2 * position - x) * x, rear * (1 - 2 * position + (2 * position - x) * x)
    )
    slope = 2 * torch.where(x < position, front, rear) * (position - x)
    root = (parameter / 2).sin().abs()
    half = 0.2969 * root - 0.1260 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4
    half, tilt = 5 * thickness * half * parameter.sign(), slope.atan()
    return torch.stack([x - half * tilt.sin(), height + half * tilt.cos()], dim=-1)


class MovingMesh:
    """The mesh of the first airfoil, whose nodes follow the airfoil as it changes.

    Args:
        mesh: the mesh around START.
    """

    def __init__(self, mesh: AirfoilMesh):
        self.nodes, self.wall = torch.from_numpy(mesh.nodes), torch.from_numpy(mesh.wall)
        corners = self.nodes[self.wall]
        fine = torch.linspace(-math.pi, math.pi, 4001, dtype=torch.float64)
        dense = contour(torch.tensor(START.digits, dtype=torch.float64), fine)
        shares = [
            torch.cat([torch.zeros(1), line.diff(dim=0).norm(dim=1).cumsum(0)]) for line in (dense, corners)
        ]
        self.parameter = torch.from_numpy(np.interp(shares[1], shares[0], fine))
        self.first = contour(torch.tensor(START.digits, dtype=torch.float64), self.parameter)
        distance = torch.from_numpy(mesh.distance)
        self.follows = torch.exp(-((distance / REACH) ** 2))[:, None]
        self.nearest = torch.cdist(self.nodes, corners).argmin(dim=1)
        touching = torch.isin(torch.from_numpy(mesh.quads), self.wall).any(dim=1)
        self.edges = corners_as_edges(torch.from_numpy(mesh.quads)[touching])
        self.surface = torch.zeros(len(self.nodes), dtype=torch.bool)
        self.surface[self.wall] = True

    def batch(self, design: Tensor) -> Batch:
        """Inputs of the surrogate for a design (camber, position, thickness, angle), differentiable in it."""
        nodes = self.nodes + self.follows * (contour(design, self.parameter) - self.first)[self.nearest]
        corners = nodes[self.wall]
        along = corners.roll(-1, 0) - corners.roll(1, 0)
        normals = torch.stack([-along[:, 1], along[:, 0]], dim=-1) / along.norm(dim=1, keepdim=True)
        start = torch.stack([self.nearest, (self.nearest - 1) % len(corners)], dim=1)
        edge, offset = corners[(start + 1) % len(corners)] - corners[start], nodes[:, None] - corners[start]
        share = ((offset * edge).sum(-1) / (edge**2).sum(-1)).clamp(0, 1)
        squared = ((offset - share[..., None] * edge) ** 2).sum(-1).amin(dim=1)
        distance = torch.sqrt(squared + 1e-20).masked_fill(self.surface, 0)
        angle = design[3].deg2rad()
        stream = START.speed * torch.stack([angle.cos(), angle.sin()]).expand(len(nodes), 2)
        on_wall = torch.zeros_like(nodes).index_copy(0, self.wall, normals)
        inputs = torch.cat([stream, distance[:, None], on_wall], dim=1)[None].float()
        blank = torch.zeros(1, len(nodes), 4)
        aux = {"wall_cells": self.edges, "stream": torch.stack([angle.new_tensor(START.speed), angle])[None]}
        return Batch(nodes[None].float(), inputs, blank, surface=self.surface[None], aux=aux)


def lift_over_drag(bundle: Bundle, mesh: MovingMesh, design: Tensor) -> Tensor:
    """L/D of the predicted flow around a design."""
    batch = mesh.batch(design)
    fields = predict_batch(bundle.model, bundle.scaler, batch.to(bundle.device), "fp32").cpu()
    lift, drag = coefficients(fields, batch)
    return (lift / drag.clamp(min=LEAST_DRAG))[0]


def optimise(bundle: Bundle, mesh: MovingMesh, steps: int) -> tuple[Tensor, Tensor]:
    """The first and the best design, by gradient ascent; designs stay between LOW and HIGH."""
    first = torch.tensor([*START.digits, START.angle], dtype=torch.float64)
    free = ((first - LOW) / (HIGH - LOW)).logit().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=0.1)
    best, best_value = first, -math.inf
    for _ in range(steps):
        design = LOW + (HIGH - LOW) * free.sigmoid()
        value = lift_over_drag(bundle, mesh, design)
        if value.item() > best_value:
            best, best_value = design.detach(), value.item()
        optimiser.zero_grad()
        (-value).backward()
        optimiser.step()
    return first, best


def first_mesh(resolution: int, refinement: int = 2) -> MovingMesh:
    """The mesh around START: nodes of a refined C-grid, without a flow."""
    cells = grid_cells(resolution)
    grid, fine = (refined_nodes([START], cells, factor)[0].numpy() for factor in (1, refinement))
    shape = tuple(size - 1 for size in grid.shape[:2])
    nothing = CellFields(np.zeros((*shape, 2)), np.zeros(shape), np.zeros(shape))
    return MovingMesh(refine_flow(grid, fine, cells.wake, nothing)[0])


def train(out: Path, samples: int, resolution: int, epochs: int, device: str) -> Bundle:
    """A surrogate trained on generated airfoils; an interrupted run is continued."""
    sizes = {"train": samples, "test": max(2, samples // 8)}
    settings = {"resolution": resolution, "seed": 0, "workers": available_cores(), "tick": lambda count: None}
    DATASETS["airfrans"].generate(out / "data", sizes=sizes, device=device, scheme="sa", **settings)
    changes = [
        *(f"data.{split}={count}" for split, count in sizes.items()),
        *(f"data.root={out / 'data'}", "data.holdout=0", "data.nodes=8000"),
        *("model.width=64", "model.depth=4", "model.heads=4"),
        *(f"training.epochs={epochs}", "training.points=4000", "training.precision=fp32"),
    ]
    run(override(recipe("airfrans", "linearno"), changes), out / "run", resolve_device(device))
    return load(out / "run", device)


def main(
    out: Path = Path("optimised-airfoil"),
    samples: int = 64,
    resolution: int = 40,
    epochs: int = 150,
    steps: int = 60,
    device: str = "cpu",
) -> None:
    bundle, mesh = train(out, samples, resolution, epochs, device), first_mesh(resolution)
    designs = optimise(bundle, mesh, steps)
    cases = [AirfoilCase(tuple(design[:3].tolist()), START.speed, float(design[3])) for design in designs]
    flows = airfoil_flows(cases, grid_cells(resolution), turbulence="sa", device=device)
    for name, design, case, lift, drag in zip(
        ("start", "optimum"), designs, cases, flows.lift, flows.drag, strict=True
    ):
        with torch.no_grad():
            predicted = lift_over_drag(bundle, mesh, design).item()
        digits = ", ".join(f"{digit:.2f}" for digit in case.digits)
        print(f"{name}: NACA ({digits}) at {case.angle:.2f} degrees")
        print(f"{name} lift over drag by the surrogate: {predicted:.1f}, by the solver: {lift / drag:.1f}")


if __name__ == "__main__":
    main()
