"""Mesh convergence of the Plasticity forgings."""

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
    dies: Annotated[int, typer.Option(min=1, help="number of random dies")] = 6,
    nodes: Annotated[
        list[int] | None,
        typer.Option(min=3, help="nodes along the block; may be repeated; 51, 101, 201 by default"),
    ] = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Solve the same dies on successively refined meshes and compare.

    Frames are compared at the points of the coarsest mesh, in the benchmark's metric and by the slide of the
    block: its mean displacement along the plane. Elements with an inverted corner in the last frame are
    counted.

    Example:

      python -m benchmarks forging-meshes --device cuda --out results
    """
    target, sizes = resolve_device(device), nodes or [51, 101, 201]
    heights = np.stack([draw_die(np.random.default_rng((seed, i))) for i in range(dies)])
    solutions, inverted = [], {}
    for size in sizes:
        start, stride = time.perf_counter(), (size - 1) // (sizes[0] - 1)
        positions = solve_forging(torch.from_numpy(heights).to(target), size)
        solutions.append(positions[:, ::stride, ::stride].cpu())
        inverted[size] = inverted_share(positions[..., -1, :])
        seconds = time.perf_counter() - start
        console.print(
            f"{size} nodes: {seconds:.0f} s; {inverted[size]:.2g} of elements have an inverted corner"
        )
    rows = [
        {"nodes": size, "finer": finer} | difference(a, b)
        for (size, finer), (a, b) in zip(pairwise(sizes), pairwise(solutions), strict=True)
    ]
    for row in rows:
        console.print(
            f"{row['nodes']} and {row['finer']} nodes: relative L2 difference {row['relative_l2']:.2e}; "
            f"slide {row['slide'][-1]:.3f} mm, difference {row['slide_apart'][-1]:.3f} mm"
        )
    record = new_record(
        "solver/forging_meshes",
        rows[-1]["relative_l2"],
        "relative L2",
        device=target,
        seed=seed,
        details={"dies": dies, "rows": rows, "turned_corners": inverted},
    )
    keep_record(record, out)


def difference(coarse: Tensor, fine: Tensor) -> dict[str, Any]:
    """Means over dies: relative L2 difference, and per frame the slide and its difference.

    Args:
        coarse: positions (B, n, m, T, 2).
        fine: positions (B, n, m, T, 2) at the same points.
    """
    outputs, slides = zip(*(_channels(positions) for positions in (coarse, fine)), strict=True)
    return {
        "relative_l2": relative_l2(*(output.flatten(1, -2) for output in outputs)).mean().item(),
        "slide": slides[1].abs().mean(dim=0).tolist(),
        "slide_apart": (slides[0] - slides[1]).abs().mean(dim=0).tolist(),
    }


def inverted_share(positions: Float[Tensor, "B n m 2"]) -> float:
    """Share of elements with an inverted corner: the cross product of its two edges has the wrong sign."""
    (ax, ay), (bx, by) = (positions.diff(dim=axis).unbind(-1) for axis in (1, 2))
    ends = slice(None, -1), slice(1, None)
    areas = [ax[:, :, j] * by[:, i] - ay[:, :, j] * bx[:, i] for i, j in product(ends, ends)]
    return (torch.stack(areas) <= 0).any(dim=0).double().mean().item()


def _channels(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Channels x, y, ux, uy, and the mean of ux in each frame."""
    displacement = positions - positions[..., :1, :]
    return torch.cat([positions, displacement], dim=-1), displacement[..., 0].mean(dim=(1, 2))
