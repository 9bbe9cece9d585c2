"""How far the forgings of Plasticity depend on the mesh: the same dies on meshes of half the size, one after
the other.

python -m benchmarks forging-meshes [--dies 6] [--nodes 51 101 201] [--device cuda] [--out results]

Compared are frames at the points of the coarsest mesh, in the benchmark's metric, and how far the block has
slid: the mean of its displacements along the plane. Of each mesh it is counted how many elements have a
corner that is turned inside out in the last frame.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.records import new_record, write_record
from linearno.metrics import relative_l2
from linearno.solvers.forging import draw_die, solve_forging


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dies", type=int, default=6)
    parser.add_argument("--nodes", type=int, nargs="+", default=[51, 101, 201], help="along the block")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    options = parser.parse_args()
    device = torch.device(options.device)
    heights = np.stack([draw_die(np.random.default_rng((options.seed, i))) for i in range(options.dies)])
    solved, corners = [], {}
    for nodes in options.nodes:
        began, every = time.perf_counter(), (nodes - 1) // (options.nodes[0] - 1)
        places = solve_forging(torch.from_numpy(heights).to(device), nodes)
        solved.append(places[:, ::every, ::every].cpu())
        corners[nodes] = turned_corners(places[..., -1, :])
        spent = f"{time.perf_counter() - began:.0f} s"
        print(f"{nodes} nodes: {spent}; a corner turned in {corners[nodes]:.2g} of elements", flush=True)
    rows = [
        {"nodes": nodes, "finer": finer} | apart(a, b)
        for nodes, finer, a, b in zip(
            options.nodes[:-1], options.nodes[1:], solved[:-1], solved[1:], strict=True
        )
    ]
    for row in rows:
        print(
            f"{row['nodes']} and {row['finer']} nodes: {row['relative_l2']:.2e} apart; the block has slid by "
            f"{row['slide'][-1]:.3f} mm, to within {row['slide_apart'][-1]:.3f}"
        )
    if options.out:
        record = new_record(
            "solver/forging_meshes",
            rows[-1]["relative_l2"],
            "relative L2",
            device=device,
            seed=options.seed,
            details={"dies": options.dies, "rows": rows, "turned_corners": corners},
        )
        print(f"record: {write_record(options.out, record)}")


def apart(coarse: Tensor, fine: Tensor) -> dict[str, float | list[float]]:
    """The mean over dies of the error of the first in the benchmark's metric, and, frame by frame, of how far
    blocks have slid and by how much that differs."""
    outputs, slides = zip(*(_channels(places) for places in (coarse, fine)), strict=True)
    return {
        "relative_l2": relative_l2(*(output.flatten(1, -2) for output in outputs)).mean().item(),
        "slide": slides[1].abs().mean(dim=0).tolist(),
        "slide_apart": (slides[0] - slides[1]).abs().mean(dim=0).tolist(),
    }


def turned_corners(places: Float[Tensor, "B n m 2"]) -> float:
    """The share of elements with a corner at which the two edges have changed sides."""
    (ax, ay), (bx, by) = (places.diff(dim=axis).unbind(-1) for axis in (1, 2))
    at = slice(None, -1), slice(1, None)
    areas = [ax[:, :, j] * by[:, i] - ay[:, :, j] * bx[:, i] for i, j in product(at, at)]
    return (torch.stack(areas) <= 0).any(dim=0).double().mean().item()


def _channels(places: Tensor) -> tuple[Tensor, Tensor]:
    """x, y, ux, uy, and the mean of ux in each frame."""
    moved = places - places[..., :1, :]
    return torch.cat([places, moved], dim=-1), moved[..., 0].mean(dim=(1, 2))


if __name__ == "__main__":
    main()
