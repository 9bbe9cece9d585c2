"""Burgers benchmark: reconstruct a field over space and time from a few observed values."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.array_set import ArraySet, StoredArray
from linearno.data.availability import Source
from linearno.data.benchmark import (
    DATASETS,
    Benchmark,
    DataConfig,
    SampleLayout,
    Splits,
    Variant,
    relative_l2,
    relative_mae,
)
from linearno.data.field_data import FieldData
from linearno.data.generation.generate import DataGenerator
from linearno.data.object_npy import read_pickled
from linearno.data.sample import FieldSpec
from linearno.solvers.burgers import MIN_POINTS, burgers_sample, require_resolution

RESOLUTION = 128  # points and times of the published files
FIELD = "u"


def _open_published(path: Path, field: str, how: str) -> ndarray:
    """`y` (samples, n, n, 1) of a published file, whose `x` (samples, n, n, 2) must be (x, t)."""
    arrays = read_pickled(path, ("x", "y"), how=how)
    x, y = arrays["x"], arrays["y"]
    if y.ndim != 4 or y.shape[1:] != (y.shape[2], y.shape[2], 1):
        raise UserError(f"{path}: y has shape {y.shape}; expected (samples, n, n, 1); {how}")
    if x.shape != (*y.shape[:3], 2):
        raise UserError(f"{path}: x has shape {x.shape}; expected {(*y.shape[:3], 2)}, as of y; {how}")
    ticks = np.linspace(0, 1, y.shape[2])
    if len(x) and not np.allclose(x[0], np.dstack(np.meshgrid(ticks, ticks)), rtol=0, atol=1e-6):
        raise UserError(f"{path}: expected x to be (x, t) from 0 to 1 with one time per row; {how}")
    return y[..., 0]


def _require_points(array: StoredArray) -> None:
    if array.shape[1] < MIN_POINTS:
        raise UserError(
            f"{array.path}: u has shape {array.shape}; expected (samples, n, n) with n from {MIN_POINTS}"
        )


FILES = ArraySet(
    "burgers",
    axes={FIELD: ("n", "n")},
    published={split: f"Burgers_IC_std_{split}.npy" for split in ("train", "test", "val")},
    open_published=_open_published,
    check=_require_points,
)


class BurgersConfig(DataConfig):
    """Load the first samples of each split.

    Args:
        val: samples of the published protocol's validation split. Runs do not use it; `open_validation` does.
        source: published files, generated set, or `auto`: the published files if they are present.
    """

    name: Literal["burgers"] = "burgers"
    root: Path = Path("data/burgers")
    train: PositiveInt = 4096
    test: PositiveInt = 128
    val: PositiveInt = 128
    source: Source = "auto"

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "val": self.val}


def open_burgers(cfg: BurgersConfig) -> Splits:
    """Load train and test: the middle half of the times, all points.

    Disk   {split}_u.npy (S, n, n), rows are times, as `generate` writes them, or the published files
    Item   coords (N, 2) = (x, t), no inputs, targets (N, 1), N = rows · n: 64 · 128 as published
    Observed points are drawn for each batch: `draw_observed`.
    """
    (train, test), source = _open(cfg, "train", "test")
    return Splits(train, test, source)


def open_validation(cfg: BurgersConfig) -> FieldData:
    """Load the validation split, in the form of `open_burgers`."""
    return _open(cfg, "val")[0][0]


def _open(cfg: BurgersConfig, *splits: str) -> tuple[list[FieldData], str]:
    stored = FILES.open(cfg.root, cfg.source, {split: cfg.sizes[split] for split in splits})
    side = stored.sizes["n"]
    layout = burgers_layout(cfg, side)
    values = [stored.read(split, FIELD, middle_rows(side)).flatten(1)[..., None] for split in splits]
    return [layout.fill(None, targets) for targets in values], stored.source


def burgers_layout(cfg: BurgersConfig, side: int = RESOLUTION) -> SampleLayout:
    """Layout of samples stored with `side` points and times."""
    rows = middle_rows(side)
    spec = FieldSpec(coords=("x", "t"), outputs=(FIELD,), grid=(rows.stop - rows.start, side))
    return SampleLayout(spec, burgers_coords(side))


def burgers_coords(side: int) -> Tensor:
    """Coordinates (x, t) of the points (N, 2) of an item; x varies fastest."""
    ticks = torch.from_numpy(np.linspace(0, 1, side)).float()
    return torch.cartesian_prod(ticks[middle_rows(side)], ticks).flip(1)


def middle_rows(side: int) -> slice:
    """Rows of the times from 1/4 to 3/4: 32 to 95 of 128."""
    return slice(side // 4, 3 * side // 4)


def make_burgers(rng: np.random.Generator, resolution: int) -> dict[str, ndarray]:
    return {FIELD: burgers_sample(rng, resolution)}


def burgers_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    return {FIELD: (resolution, resolution)}


generate_burgers = DataGenerator(
    name="burgers",
    equation="u_t + u u_x = 0.01 u_xx on a circle, t from 0 to 1; u at t = 0 is Gaussian with covariance "
    "exp(-2 sin^2(pi d)) at distance d; rows are times linspace(0, 1, n), columns points linspace(0, 1, n)",
    solver="method of lines: first-order upwind differences and the three-point Laplacian with spacing "
    "1/(n - 1), LSODA with relative and absolute tolerance 1.5e-8",
    units={FIELD: "dimensionless"},
    make=make_burgers,
    shapes=burgers_shapes,
)


OBSERVED = {"burgers20": 0.2, "burgers10": 0.1, "burgers5": 0.05, "burgers1": 0.01, "burgers05": 0.005}

DATASETS.register("burgers")(
    Benchmark(
        summary="Burgers' equation: a few observed values → the field, 64 times × 128 points",
        config=BurgersConfig,
        open=open_burgers,
        verify=FILES.verify,
        generate=generate_burgers,
        protocol={
            "optimizer": "adam",
            "weight_decay": 0.0,
            "clip": 1000.0,
            "start_factor": 1e4,
            "precision": "bf16",
            "checkpoint_seconds": 30,
            "loss": {"kind": "mse", "reduction": "mean"},
        },
        task={"name": "completion", "ratio": 0.2},
        metrics={"relative_mae": relative_mae, "relative_l2": relative_l2},
        variants={
            name: {"task": {"ratio": ratio}, "summary": f"from {100 * ratio:g} % of the points"}
            for name, ratio in OBSERVED.items()
        },
        models={
            "linearno": Variant(
                model="cross-linearno",
                settings={"width": 96, "depth": 4, "heads": 8, "slices": 48, "mlp_ratio": 3},
                summary="Cross-LinearNO, the published code's sizes: Adam, one-cycle to 1e-3.",
            ),
            "linearno-paper": Variant(
                model="cross-linearno",
                settings={"width": 96, "depth": 8, "heads": 8, "slices": 256, "mlp_ratio": 3},
                summary="Cross-LinearNO, the paper's sizes: Adam, one-cycle to 1e-3.",
            ),
            "cross-lno": Variant(
                training={"schedule": "step", "decay": 0.7, "decay_epochs": 50},
                summary="LNO that completes fields: Adam, the rate times 0.7 every 50 epochs.",
            ),
            "deeponet": Variant(
                training={"schedule": "step", "decay": 0.7, "decay_epochs": 50},
                summary="DeepONet with a transformer branch: width 96 (our setting), trained as cross-lno.",
            ),
            "cross-gnot": Variant(
                training={"schedule": "step", "decay": 0.7, "decay_epochs": 50},
                summary="GNOT that completes fields: width 96, 4 blocks, 8 heads, 2 experts (our settings), "
                "trained as cross-lno.",
            ),
        },
        resolution=RESOLUTION,
        layout=burgers_layout,
        outputs=(FIELD,),
        published=FILES.published_names,
    )
)
