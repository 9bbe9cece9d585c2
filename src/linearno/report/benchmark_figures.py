"""Figures of a run that belong to one benchmark: functions by the name of the benchmark."""

from collections.abc import Callable

import numpy as np

from linearno.core.registry import Registry
from linearno.report.formatting import capitalise
from linearno.report.html import Markup, join, tag
from linearno.report.plots import picture
from linearno.report.run_folder import Cases, Run
from linearno.viz import WallPressure, polar_figure, wall_pressure_figure

BenchmarkFigures = Callable[[Run], Markup | None]  # of the runs on a benchmark; None if files are missing

# A benchmark of your own joins with @BENCHMARK_FIGURES.register("name").
BENCHMARK_FIGURES: Registry[BenchmarkFigures] = Registry("figures of a benchmark")
RANKS = ("best", "median", "worst")


def benchmark_figures(run: Run) -> Markup | None:
    """The figures that belong to the benchmark of a run, if there are any."""
    name = run.config.get("data", {}).get("name")
    figures = BENCHMARK_FIGURES.registered(name) if isinstance(name, str) else None
    return None if figures is None else figures(run)


@BENCHMARK_FIGURES.register("airfrans")
def airfoils(run: Run) -> Markup | None:
    """Pressure along the chord of the example cases, and lift and drag of the test set."""
    figures = []
    if run.cases is not None and run.cases.inputs is not None:
        airfoils = [_wall_pressure(run.cases, index) for index in range(len(run.cases.sample))]
        caption = (
            "Pressure coefficient p / (U²/2) on the airfoil, with low pressure above; the upper curve "
            "usually belongs to the upper side. Predictions beyond the axis are cut off."
        )
        alt = f"Pressure coefficient along the chord of {run.name}: truth and prediction"
        figures.append(picture(wall_pressure_figure(airfoils), alt=alt, caption=caption))
    if run.test_set:
        names = ("angle", "lift", "true_lift", "drag", "true_drag")
        caption = (
            "Coefficients of lift and drag of all test samples, integrated from pressure and friction on the "
            "airfoil. A grey line joins truth and prediction; predictions beyond the axis are at its border."
        )
        alt = f"Lift and drag against the angle of attack of {run.name}: truth and prediction"
        figures.append(
            picture(polar_figure(*(run.test_set[name] for name in names)), alt=alt, caption=caption)
        )
    return join([tag("div", *figures, class_="figures two")]) if figures else None


def _wall_pressure(found: Cases, index: int) -> WallPressure:
    """Pressure coefficients of one case from its fields; points on the airfoil are those with a normal."""
    assert found.inputs is not None
    inputs, pressure = found.inputs[index], found.spec.outputs.index("p")
    stream = inputs[:, [found.spec.inputs.index(name) for name in ("stream_x", "stream_y")]]
    normals = inputs[:, [found.spec.inputs.index(name) for name in ("normal_x", "normal_y")]]
    wall = np.flatnonzero(normals.any(axis=1))
    dynamic = float((stream[0] ** 2).sum()) / 2
    return WallPressure(
        title=f"{capitalise(RANKS[index])} case: sample {found.sample[index]}",
        x=found.coords[index][wall, 0],
        upper=normals[wall, 1] > 0,
        truth=found.targets[index][wall, pressure] / dynamic,
        prediction=found.predictions[index][wall, pressure] / dynamic,
    )
