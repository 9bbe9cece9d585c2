"""Error and time of the Navier–Stokes schemes, compared with a refined solution in float64."""

from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.cli.shared import OutOption, SeedOption, keep_record
from benchmarks.navier_stokes import Candidate, compare_schemes
from linearno.cli.shared import DeviceOption, console
from linearno.core.device import resolve_device
from linearno.reproduce.records import new_record
from linearno.solvers.navier_stokes import stored_points
from linearno.solvers.random_fields import draw_each, periodic_field


def navier_stokes_schemes(
    samples: Annotated[int, typer.Option(min=1, help="number of flows, solved as one batch")] = 4,
    frames: Annotated[int, typer.Option(min=1, help="frames, one per unit of time")] = 10,
    resolution: Annotated[int, typer.Option(min=1, help="grid points a side")] = 256,
    coarse: Annotated[
        bool, typer.Option("--coarse", help="compare coarser grids instead of schemes")
    ] = False,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Compare the Navier–Stokes schemes, or rk4 on coarser grids, with a refined solution.

    Examples:

      python -m benchmarks navier-stokes-schemes --device cuda --out results
      python -m benchmarks navier-stokes-schemes --coarse --frames 20 --samples 2
    """
    size, target = resolution, resolve_device(device)
    rngs = [np.random.default_rng((seed, index)) for index in range(samples)]
    w = torch.from_numpy(draw_each(rngs, lambda rng: periodic_field(rng, size))).to(target)
    truth = Candidate("rk4", size, "float64", steps=size if coarse else 4 * size)
    others = [
        Candidate("euler", size),
        Candidate("euler", size, "float64"),
        Candidate("rk4", size),
        Candidate("rk4", size, "float64"),
        Candidate("rk4", size // 2),
    ]
    if coarse:
        others = [Candidate("rk4", size // factor) for factor in (1, 2, 4, 8)]
    rows, points = [], min(stored_points(size), others[-1].resolution)
    console.print(f"{samples} samples to t = {frames}; reference: rk4, float64, dt {truth.dt:.2e}")
    console.print(
        f"{'scheme':7}{'grid':>6}{'dtype':>9}{'dt':>10}{'seconds':>9}{'error':>11}{'from first':>12}"
    )
    for row in compare_schemes(w, frames, truth, others, points=points):
        error, first = row["error"][-1], row["from_first"][-1]
        console.print(
            f"{row['scheme']:7}{row['resolution']:>6}{row['dtype']:>9}{row['dt']:>10.2e}"
            f"{row['seconds']:>9.1f}{error:>11.2e}{first:>12.2e}",
            highlight=False,
        )
        rows.append(row)
    ours = next(row for row in rows if row["scheme"] == "rk4")
    record = new_record(
        "solver/navier_stokes_grids" if coarse else "solver/navier_stokes",
        ours["error"][-1],
        "relative L2",
        device=target,
        seed=seed,
        details={"samples": samples, "frames": frames, "rows": rows},
    )
    keep_record(record, out)
