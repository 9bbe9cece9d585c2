"""What is told of the published Airfoil flows, measured on random ones of ours.

python -m benchmarks airfoil-flows [--airfoils 20] [--device cuda] [--out results]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from benchmarks.records import new_record, write_record
from linearno.core.randomness import numpy_generator
from linearno.solvers.airfoil import MACH, airfoil_samples
from linearno.solvers.euler import GAMMA

FAR = 20.0  # chords from the leading edge
# by notes on the published files, github.com/duasob/omni_hc, docs/benchmarks/airfoil.md; None: not told
PUBLISHED = {
    "share of supersonic nodes": "about 0.05",
    "largest Mach number": None,
    "spread of p/ρ^1.4": "about 0.01",
    "flow through the wall and across the wake, mean": "0.009",
    "flow through the wall and across the wake, 99 % quantile": "0.07",
    "distance of ρ from 1 far away, mean": "below 0.005",
    "distance of p from 1 far away, mean": "below 0.005",
    "distance of u from 0.9466 far away, mean": "below 0.02",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--airfoils", type=int, default=20)
    parser.add_argument("--resolution", type=int, default=221, help="nodes along the C-grid")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record into this folder")
    options = parser.parse_args()
    device, found = torch.device(options.device), []
    for index in range(options.airfoils):
        rngs = [numpy_generator(options.seed, index)]
        flow = airfoil_samples(rngs, options.resolution, device)
        found.append(facts(flow.X[0], flow.Y[0], flow.Q[0]))
        print(f"airfoil {index}: {100 * found[-1][0]:.1f} % of the nodes supersonic", flush=True)
    values = np.array(found)
    rows = [
        {"what": what, "published": told, "mean": mean, "least": least, "most": most}
        for (what, told), mean, least, most in zip(
            PUBLISHED.items(), values.mean(0), values.min(0), values.max(0), strict=True
        )
    ]
    for row in rows:
        told = row["published"] or "not told"
        print(
            f"{row['what']}: {row['mean']:.3g} ({row['least']:.3g} to {row['most']:.3g}); published: {told}"
        )
    if options.out:
        record = new_record(
            "solver/airfoil_flows",
            rows[0]["mean"],
            "of the nodes supersonic",
            device=device,
            seed=options.seed,
            details={"airfoils": options.airfoils, "resolution": options.resolution, "rows": rows},
        )
        print(f"record: {write_record(options.out, record)}")


def facts(
    x: Float[ndarray, "I J"], y: Float[ndarray, "I J"], q: Float[ndarray, "5 I J"]
) -> tuple[float, ...]:
    """Of one flow, in the order of `PUBLISHED`."""
    density, u, v, pressure, mach = q
    along = np.stack([np.gradient(x[:, 0]), np.gradient(y[:, 0])])
    tx, ty = along / np.linalg.norm(along, axis=0)
    through = np.abs(v[:, 0] * tx - u[:, 0] * ty)
    far = np.hypot(x, y) > FAR
    return (
        float((mach > 1).mean()),
        float(mach.max()),
        float((pressure / density**GAMMA).std()),
        float(through.mean()),
        float(np.quantile(through, 0.99)),
        *(
            float(np.abs(field[far] - at_rest).mean())
            for field, at_rest in ((density, 1), (pressure, 1), (u, MACH * GAMMA**0.5))
        ),
    )


if __name__ == "__main__":
    main()
