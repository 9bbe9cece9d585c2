"""Tables of docs/how-to/airfoil-flows.md about the RANS solver."""

from statistics import median
from typing import Any

from benchmarks.tables.markdown import Records, markdown_table, origin, table

MODEL_TITLES = {"sa": "Spalart–Allmaras", "sst": "k-ω SST"}


@table("naca0012", "solver/rans/naca0012", command="python -m benchmarks naca0012 --out results")
def naca0012_table(found: Records) -> str:
    """Lift and drag of NACA 0012 on all grids, and NASA's."""
    record = found[""]
    rows = [
        [
            MODEL_TITLES[row["model"]],
            f"{row['angle']}°",
            row["grid"],
            f"{row['lift']:.4f} ({_relative(row['lift'], row['nasa_lift'])})" if row["angle"] else "0.0000",
            f"{row['drag']:.5f} ({_relative(row['drag'], row['nasa_drag'])})",
            str(row["steps"]),
        ]
        for row in sorted(record.details["rows"], key=lambda row: (row["model"], row["angle"]))
    ]
    head = ["turbulence", "angle", "cells", "C_L (to NASA's)", "C_D (to NASA's)", "steps"]
    return f"{markdown_table(head, rows)}\n\n{origin(record)}."


def _relative(value: float, other: float) -> str:
    return f"{100 * (value / other - 1):+.1f} %"


@table(
    "airfrans_surfaces",
    "solver/rans/airfrans_surfaces",
    command="python -m benchmarks airfrans-surfaces FOLDER --out results",
)
def surfaces_table(found: Records) -> str:
    """Difference of the pressure to surfaces of AirfRANS."""
    record = found[""]
    low, high = record.details["x"]
    rows = [
        [
            row["name"].removeprefix("airFoil2D_SST_").replace("_", ", "),
            MODEL_TITLES[row["model"]],
            row["grid"],
            f"{100 * row['relative_l2']:.2f} %",
            f"{row['largest']:.3f}",
        ]
        for row in record.details["rows"]
    ]
    head = ["m/s, degrees, digits", "turbulence", "cells", "relative L2 of Cp", "largest difference"]
    return f"{markdown_table(head, rows)}\n\nAt all points with {low} < x < {high}. {origin(record)}."


@table(
    "random_airfoils",
    "solver/rans/random_airfoils",
    command="python -m benchmarks random-airfoils --out results",
)
def random_airfoils_note(found: Records) -> str:
    """Summary of random airfoils beside NeuralFoil."""
    record = found[""]
    facts: dict[str, Any] = record.details
    steps, first = [row["steps"] for row in facts["rows"]], facts["rows"][0]
    return (
        f"{facts['airfoils']} random airfoils with {MODEL_TITLES[first['model']]} on {first['grid']} cells, "
        f"beside NeuralFoil with transition at the leading edge: {facts['steady']} steady, in "
        f"{median(steps):.0f} steps (median) to {max(steps)}; mean difference of C_L {record.value:.3f}, "
        f"correlation {facts['lift_correlation']:.4f}; median ratio of C_D {facts['median_drag_ratio']:.2f}. "
        f"{origin(record)}."
    )
