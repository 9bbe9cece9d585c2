"""Dependence of the Plasticity forgings on the mesh."""

import time
from itertools import pairwise, product
from typing import Annotated, Any

import numpy as np
import torch
import typer
from jaxtyping import Float
from torch import Tensor

from benchmarks.cli.shared import OutOption, SeedOption, keep_record
from linearno.cli.shared import DeviceOption, console
from linearno.core.device import resolve_device
from linearno.metrics import relative_l2
from linearno.reproduce.records import new_record
from linearno.solvers.forging import draw_die, solve_forging


def forging_meshes(
    dies: Annotated[int, typer.Option(min=1, help="random dies")] = 6,
    nodes: Annotated[
        list[int] | None,
        typer.Option(min=3, help="along the block; may be repeated; 51, 101, 201 by default"),
    ] = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Solve the same dies on meshes of half the element size, one after the other, and compare.

    Frames are compared at the points of the coarsest mesh, in the benchmark's metric, and by how far the
    block has slid: the mean of its displacements along the plane. Elements with a corner that is turned
    inside out in the last frame are counted.

    Example:

      python -m benchmarks forging-meshes --device cuda --out results
    """
    where, sizes = resolve_device(device), nodes or [51, 101, 201]
    heights = np.stack([draw_die(np.random.default_rng((seed, i))) for i in range(dies)])
    solved, corners = [], {}
    for size in sizes:
        began, stride = time.perf_counter(), (size - 1) // (sizes[0] - 1)
        positions = solve_forging(torch.from_numpy(heights).to(where), size)
        solved.append(positions[:, ::stride, ::stride].cpu())
        corners[size] = turned_corners(positions[..., -1, :])
        seconds = time.perf_counter() - began
        console.print(f"{size} nodes: {seconds:.0f} s; a corner turned in {corners[size]:.2g} of elements")
    rows = [
        {"nodes": size, "finer": finer} | difference(a, b)
        for (size, finer), (a, b) in zip(pairwise(sizes), pairwise(solved), strict=True)
    ]
    for row in rows:
        console.print(
            f"{row['nodes']} and {row['finer']} nodes: {row['relative_l2']:.2e} apart; the block has slid by "
            f"{row['slide'][-1]:.3f} mm, to within {row['slide_apart'][-1]:.3f}"
        )
    record = new_record(
        "solver/forging_meshes",
        rows[-1]["relative_l2"],
        "relative L2",
        device=where,
        seed=seed,
        details={"dies": dies, "rows": rows, "turned_corners": corners},
    )
    keep_record(record, out)


def difference(coarse: Tensor, fine: Tensor) -> dict[str, Any]:
    """Means over dies: the error of the coarse solution, and per frame the slide and its difference."""
    outputs, slides = zip(*(_channels(positions) for positions in (coarse, fine)), strict=True)
    return {
        "relative_l2": relative_l2(*(output.flatten(1, -2) for output in outputs)).mean().item(),
        "slide": slides[1].abs().mean(dim=0).tolist(),
        "slide_apart": (slides[0] - slides[1]).abs().mean(dim=0).tolist(),
    }


def turned_corners(positions: Float[Tensor, "B n m 2"]) -> float:
    """The share of elements with a corner at which the two edges have changed sides."""
    (ax, ay), (bx, by) = (positions.diff(dim=axis).unbind(-1) for axis in (1, 2))
    at = slice(None, -1), slice(1, None)
    areas = [ax[:, :, j] * by[:, i] - ay[:, :, j] * bx[:, i] for i, j in product(at, at)]
    return (torch.stack(areas) <= 0).any(dim=0).double().mean().item()


def _channels(positions: Tensor) -> tuple[Tensor, Tensor]:
    """x, y, ux, uy, and the mean of ux in each frame."""
    moved = positions - positions[..., :1, :]
    return torch.cat([positions, moved], dim=-1), moved[..., 0].mean(dim=(1, 2))
