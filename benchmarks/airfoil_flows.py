"""Compare statistics of generated airfoil flows with those reported for the published files."""

from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float
from numpy import ndarray

from benchmarks.cli.shared import OutOption, SeedOption, keep_record
from linearno.cli.shared import DeviceOption, console
from linearno.core.device import resolve_device
from linearno.core.randomness import numpy_generator
from linearno.reproduce.records import new_record
from linearno.solvers.airfoil import MACH, airfoil_samples
from linearno.solvers.euler import GAMMA

FAR_FIELD_RADIUS = 20.0  # chords from the leading edge
# github.com/duasob/omni_hc, docs/benchmarks/airfoil.md; None: unknown
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


def airfoil_flows(
    airfoils: Annotated[int, typer.Option(min=1, help="number of random airfoils")] = 20,
    resolution: Annotated[int, typer.Option(min=1, help="nodes along the C-grid")] = 221,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    out: OutOption = None,
) -> None:
    """Compare statistics of random airfoil flows with those reported for the published flows.

    Example:

      python -m benchmarks airfoil-flows --airfoils 20 --device cuda --out results
    """
    target, statistics_of_flows = resolve_device(device), []
    for index in range(airfoils):
        flow = airfoil_samples([numpy_generator(seed, index)], resolution, target)
        statistics_of_flows.append(statistics(flow["X"][0], flow["Y"][0], flow["Q"][0]))
        console.print(f"airfoil {index}: {100 * statistics_of_flows[-1][0]:.1f} % of the nodes supersonic")
    values = np.array(statistics_of_flows)
    rows = [
        {"what": name, "published": published, "mean": mean, "least": smallest, "most": largest}
        for (name, published), mean, smallest, largest in zip(
            PUBLISHED.items(), values.mean(0), values.min(0), values.max(0), strict=True
        )
    ]
    for row in rows:
        spread = f"{row['least']:.3g} to {row['most']:.3g}"
        published = row["published"] or "unknown"
        console.print(f"{row['what']}: {row['mean']:.3g} ({spread}); published: {published}")
    record = new_record(
        "solver/airfoil_flows",
        rows[0]["mean"],
        "of the nodes supersonic",
        device=target,
        seed=seed,
        details={"airfoils": airfoils, "resolution": resolution, "rows": rows},
    )
    keep_record(record, out)


def statistics(
    x: Float[ndarray, "I J"], y: Float[ndarray, "I J"], q: Float[ndarray, "5 I J"]
) -> tuple[float, ...]:
    """Statistics of one flow, in the order of `PUBLISHED`.

    Args:
        x: x of the nodes.
        y: y of the nodes.
        q: density, velocity, pressure and Mach number at the nodes.
    """
    density, u, v, pressure, mach = q
    tangents = np.stack([np.gradient(x[:, 0]), np.gradient(y[:, 0])])
    tx, ty = tangents / np.linalg.norm(tangents, axis=0)
    normal_velocity = np.abs(v[:, 0] * tx - u[:, 0] * ty)
    far = np.hypot(x, y) > FAR_FIELD_RADIUS
    return (
        float((mach > 1).mean()),
        float(mach.max()),
        float((pressure / density**GAMMA).std()),
        float(normal_velocity.mean()),
        float(np.quantile(normal_velocity, 0.99)),
        *(
            float(np.abs(field[far] - free_stream).mean())
            for field, free_stream in ((density, 1), (pressure, 1), (u, MACH * GAMMA**0.5))
        ),
    )
