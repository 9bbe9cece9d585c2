"""The published settings of each model on each benchmark, and the paper's figures of their cost."""

from dataclasses import dataclass
from math import prod
from typing import Any

from linearno.models import CONFIGS
from linearno.nn import ModelConfig


@dataclass(frozen=True)
class Published:
    """A benchmark as the models see it, each model's settings, and the paper's (parameters M, GFLOPs)."""

    coords: int
    inputs: int
    outputs: int
    points: int
    settings: dict[str, dict[str, Any]]
    paper: dict[str, tuple[float, float]]


def _on_grid(
    grid: tuple[int, int],
    channels: tuple[int, int],
    *,
    linearno: dict[str, Any] | None = None,
    transolver: dict[str, Any] | None = None,
    paper: dict[str, tuple[float, float]],
) -> Published:
    """A benchmark on a structured mesh: both models with a convolutional stem, unless they say otherwise."""
    settings = {
        "linearno": {"grid": grid, "stem": "conv", "merge_layers": 2} | (linearno or {}),
        "transolver": {"grid": grid, "stem": "conv"} | (transolver or {}),
    }
    return Published(2, *channels, prod(grid), settings, paper)


BENCHMARKS: dict[str, Published] = {
    "airfoil": _on_grid(
        (221, 51),
        (0, 1),
        paper={"linearno": (1.77, 21.34), "transolver": (2.81, 32.38)},
    ),
    "pipe": _on_grid(
        (129, 129),
        (0, 1),
        transolver={"mlp_ratio": 2},
        paper={"linearno": (1.77, 31.51), "transolver": (3.07, 52.17)},
    ),
    "plasticity": _on_grid(
        (101, 31),
        (1, 4),
        linearno={"temperature": None, "time": True},
        transolver={"time": True},
        paper={"linearno": (1.80, 6.03), "transolver": (2.84, 9.10)},
    ),
    "ns": _on_grid(
        (64, 64),
        (10, 1),
        linearno={
            "width": 256,
            "slices": 32,
            "mlp_ratio": 2,
            "stem": "linear",
            "merge_layers": 1,
            "temperature": None,
            "unified": {"ref": 10},
        },
        transolver={"width": 256, "slices": 32, "unified": {"ref": 8}},
        paper={"linearno": (3.38, 15.53), "transolver": (11.23, 46.16)},
    ),
    "darcy": _on_grid(
        (85, 85),
        (1, 1),
        transolver={"unified": {"ref": 8}},
        paper={"linearno": (1.77, 13.68), "transolver": (2.83, 20.87)},
    ),
    "elasticity": Published(
        2,
        0,
        1,
        972,
        {"linearno": {}, "transolver": {}},
        {"linearno": (0.59, 0.69), "transolver": (0.71, 0.76)},
    ),
}

CAR = Published(  # ShapeNet-Car, which the tables of cost leave out
    7,
    0,
    4,
    32186,
    {"linearno": {"width": 256, "slices": 32, "mlp_ratio": 2, "merge_layers": 2, "temperature": (0.1, 2.0)}},
    {},
)

BURGERS = Published(  # a field on 64 times × 128 places, completed from a share of its own points
    2,
    1,
    1,
    8192,
    {"cross-linearno": {"width": 96, "depth": 4, "heads": 8, "slices": 48, "mlp_ratio": 3}},
    {},
)
BURGERS_PAPER = Published(  # the sizes that the paper prints; its code runs those above
    2,
    1,
    1,
    8192,
    {"cross-linearno": {"width": 96, "depth": 8, "heads": 8, "slices": 256, "mlp_ratio": 3}},
    {},
)

MILLION = Published(
    3, 0, 1, 1_000_000, {"linearno": {"width": 256, "slices": 32}}, {}
)  # to see what memory holds
OTHERS = {"car": CAR, "million": MILLION, "burgers": BURGERS, "burgers-paper": BURGERS_PAPER}


def model_config(model: str, benchmark: str) -> ModelConfig:
    """The settings of `model` on `benchmark`; the grid is left to the data."""
    published = OTHERS.get(benchmark) or BENCHMARKS[benchmark]
    settings = {k: v for k, v in published.settings[model].items() if k != "grid"}
    return CONFIGS[model].make({"name": model} | settings)
