"""Published settings of each model on each benchmark, and the costs printed in the paper."""

from dataclasses import dataclass
from math import prod
from typing import Any

from linearno.data import DATASETS
from linearno.models import MODELS
from linearno.nn import ModelConfig


@dataclass(frozen=True)
class Published:
    """Sizes of a benchmark, settings of the models, and their costs in the paper.

    Args:
        coords: coordinates of a point.
        inputs: input channels.
        outputs: predicted channels.
        points: points of a sample.
        settings: settings by model name.
        paper: (parameters in 10⁶, GFLOPs) by model name, as printed in the paper.
    """

    coords: int
    inputs: int
    outputs: int
    points: int
    settings: dict[str, dict[str, Any]]
    paper: dict[str, tuple[float, float]]


def _on_benchmark(
    name: str,
    sizes: tuple[int, int, int],
    shape: int | tuple[int, int],
    paper: dict[str, tuple[float, float]],
) -> Published:
    """A registered benchmark.

    Args:
        name: name of the benchmark.
        sizes: number of coordinates, inputs and outputs.
        shape: number of points, or grid of a structured mesh.
        paper: costs printed in the paper, by model.
    """
    grid = {} if isinstance(shape, int) else {"grid": shape}
    benchmark = DATASETS[name]
    settings = {model: {**grid, **benchmark.variant(model).settings} for model in paper}
    return Published(*sizes, shape if isinstance(shape, int) else prod(shape), settings, paper)


BENCHMARKS: dict[str, Published] = {
    "airfoil": _on_benchmark(
        "airfoil", (2, 0, 1), (221, 51), {"linearno": (1.77, 21.34), "transolver": (2.81, 32.38)}
    ),
    "pipe": _on_benchmark(
        "pipe", (2, 0, 1), (129, 129), {"linearno": (1.77, 31.51), "transolver": (3.07, 52.17)}
    ),
    "plasticity": _on_benchmark(
        "plasticity", (2, 1, 4), (101, 31), {"linearno": (1.80, 6.03), "transolver": (2.84, 9.10)}
    ),
    "ns": _on_benchmark(
        "ns", (2, 10, 1), (64, 64), {"linearno": (3.38, 15.53), "transolver": (11.23, 46.16)}
    ),
    "darcy": _on_benchmark(
        "darcy", (2, 1, 1), (85, 85), {"linearno": (1.77, 13.68), "transolver": (2.83, 20.87)}
    ),
    "elasticity": _on_benchmark(
        "elasticity", (2, 0, 1), 972, {"linearno": (0.59, 0.69), "transolver": (0.71, 0.76)}
    ),
}

CAR = Published(  # ShapeNet-Car; the paper's cost tables do not contain it
    7,
    0,
    4,
    32186,
    {"linearno": {"width": 256, "slices": 32, "mlp_ratio": 2, "merge_layers": 2, "temperature": (0.1, 2.0)}},
    {},
)

MILLION = Published(3, 0, 1, 1_000_000, {"linearno": {"width": 256, "slices": 32}}, {})  # tests memory limits
EXTRA_SHAPES = {"car": CAR, "million": MILLION}


def model_config(model: str, benchmark: str) -> ModelConfig:
    """Settings of `model` on `benchmark` without the grid, which comes from the data."""
    published = EXTRA_SHAPES.get(benchmark) or BENCHMARKS[benchmark]
    settings = {k: v for k, v in published.settings[model].items() if k != "grid"}
    return MODELS[model].config.make({"name": model} | settings)
