"""The two schemes of the Navier–Stokes solver beside a refined solution in float64: error and time.

python -m benchmarks navier-stokes-schemes [--samples 4] [--frames 10] [--device cuda] [--out results]
python -m benchmarks navier-stokes-schemes --coarse --frames 20 --samples 2   one scheme on coarser grids
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.navier_stokes import Contestant, compare_schemes
from benchmarks.records import new_record, write_record
from linearno.solvers.navier_stokes import stored_points
from linearno.solvers.random_fields import draw_each, periodic_field


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--coarse", action="store_true", help="coarser grids in place of schemes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    options = parser.parse_args()
    size, device = options.resolution, torch.device(options.device)
    rngs = [np.random.default_rng((options.seed, index)) for index in range(options.samples)]
    w = torch.from_numpy(draw_each(rngs, lambda rng: periodic_field(rng, size))).to(device)
    truth = Contestant("rk4", size, "float64", steps=size if options.coarse else 4 * size)
    others = [
        Contestant("euler", size),
        Contestant("euler", size, "float64"),
        Contestant("rk4", size),
        Contestant("rk4", size, "float64"),
        Contestant("rk4", size // 2),
    ]
    if options.coarse:
        others = [Contestant("rk4", size // part) for part in (1, 2, 4, 8)]
    rows, points = [], min(stored_points(size), others[-1].resolution)
    print(f"{options.samples} samples to t = {options.frames}; truth: rk4, float64, dt {truth.dt:.2e}")
    print(f"{'scheme':7}{'grid':>6}{'dtype':>9}{'dt':>10}{'seconds':>9}{'error':>11}{'from first':>12}")
    for row in compare_schemes(w, options.frames, truth, others, points=points):
        error, apart = row["error"][-1], row["from_first"][-1]
        print(
            f"{row['scheme']:7}{row['resolution']:>6}{row['dtype']:>9}{row['dt']:>10.2e}"
            f"{row['seconds']:>9.1f}{error:>11.2e}{apart:>12.2e}",
            flush=True,
        )
        rows.append(row)
    if options.out:
        ours = next(row for row in rows if row["scheme"] == "rk4")
        details = {"samples": options.samples, "frames": options.frames, "rows": rows}
        record = new_record(
            "solver/navier_stokes_grids" if options.coarse else "solver/navier_stokes",
            ours["error"][-1],
            "relative L2",
            device=device,
            seed=options.seed,
            details=details,
        )
        print(f"record: {write_record(options.out, record)}")


if __name__ == "__main__":
    main()
