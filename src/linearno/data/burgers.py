"""Burgers' equation: from a few observed values of a field over space and time to all of them."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.errors import UserError, require
from linearno.data.availability import (
    Kind,
    Source,
    choose_source,
    complaints,
    generated_words,
    how_to_fetch,
    how_to_generate,
    require_samples,
    set_problems,
    verify_tells,
)
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
from linearno.data.generation.card import array_name, open_array, read_card_for, require_finite
from linearno.data.generation.generate import Recipe, generator
from linearno.data.generation.plan import SPLITS, Split
from linearno.data.object_npy import read_pickled
from linearno.data.sample import FieldSpec
from linearno.solvers.burgers import SMALLEST, burgers_sample, require_resolution

RESOLUTION = 128  # points and times of the published files
FIELD = "u"
PUBLISHED = {split: f"Burgers_IC_std_{split}.npy" for split in SPLITS}
PROTOCOL: tuple[Split, ...] = ("train", "test")  # what a run reads


class BurgersConfig(DataConfig):
    """The first samples of each split. `source`: as for Darcy.

    The published protocol has a validation split. Nothing is chosen by it here: `open_validation` reads it.
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
    """Train and test in memory: the middle half of the times, all points.

    Disk   {split}_u.npy (S, n, n), rows are times, as `generate` writes them, or the published files
    Item   coords (N, 2) = (x, t), no inputs, targets (N, 1), N = rows · n: 64 · 128 as published
    What is observed of the targets is drawn anew for every batch: `draw_observed`.
    """
    kind = _kind(cfg)
    source = _words(cfg.root, kind)
    train, test = _open(cfg, "train", kind), _open(cfg, "test", kind)
    if train.spec != test.spec:
        raise UserError(
            f"{cfg.root}: train has {train.spec.grid} times and points, test has {test.spec.grid}; "
            f"expected the same; {_how(cfg.root, kind)}"
        )
    return Splits(train, test, source)


def open_validation(cfg: BurgersConfig) -> FieldData:
    return _open(cfg, "val", _kind(cfg))


def burgers_layout(cfg: BurgersConfig, side: int = RESOLUTION) -> SampleLayout:
    """Of samples stored at so many points and times."""
    rows = middle_rows(side)
    spec = FieldSpec(coords=("x", "t"), outputs=(FIELD,), grid=(rows.stop - rows.start, side))
    return SampleLayout(spec, burgers_coords(side))


def burgers_coords(side: int) -> Tensor:
    """(x, t) of the points of an item: t from row to row, x within a row."""
    ticks = torch.from_numpy(np.linspace(0, 1, side)).float()
    return torch.cartesian_prod(ticks[middle_rows(side)], ticks).flip(1)


def middle_rows(side: int) -> slice:
    """Times from about 1/4 to 3/4: rows 32 to 95 of 128."""
    return slice(side // 4, 3 * side // 4)


def _kind(cfg: BurgersConfig) -> Kind:
    return choose_source(cfg.root, cfg.source, [PUBLISHED[split] for split in PROTOCOL])


def _path(root: Path, split: Split, kind: Kind) -> Path:
    return root / (PUBLISHED[split] if kind == "published" else array_name(split, FIELD))


def _how(root: Path, kind: Kind) -> str:
    return (how_to_fetch if kind == "published" else how_to_generate)("burgers", root)


def _words(root: Path, kind: Kind) -> str:
    """Where the numbers come from; an error if they are not there."""
    how = _how(root, kind)
    if kind == "generated":
        return generated_words(read_card_for(root, "burgers", how=how), root)
    train, test = (require(_path(root, split, kind), how=how).name for split in PROTOCOL)
    return f"published files {train} and {test} in {root}"


def _open(cfg: BurgersConfig, split: Split, kind: Kind) -> FieldData:
    path, count = _path(cfg.root, split, kind), cfg.sizes[split]
    u = _stored(path, kind, how=_how(cfg.root, kind))
    require_samples(path, FIELD, len(u), {split: count})
    side = u.shape[-1]
    with np.errstate(over="ignore"):  # becomes infinite, and is named as such
        values = np.array(u[:count, middle_rows(side)], dtype=np.float32, order="C")
    require_finite(values, f"{path}: {FIELD}", how=verify_tells("burgers", cfg.root))
    return burgers_layout(cfg, side).filled(None, torch.from_numpy(values.reshape(count, -1, 1)))


def _stored(path: Path, kind: Kind, *, how: str) -> ndarray:
    """The trajectories (samples, n, n) of a file."""
    if kind == "published":
        return _published(path, how=how)
    u = open_array(path, how=how)
    if u.ndim != 3 or u.shape[1] != u.shape[2] or u.shape[2] < SMALLEST:
        raise UserError(f"{path}: {FIELD} has shape {u.shape}; expected (samples, n, n); {how}")
    return u


def _published(path: Path, *, how: str) -> ndarray:
    """`y` (samples, n, n, 1) of a published file, after a look at `x` (samples, n, n, 2), which is (x, t)."""
    arrays = read_pickled(path, ("x", "y"), how=how)
    x, y = arrays["x"], arrays["y"]
    if y.ndim != 4 or y.shape[1:] != (y.shape[2], y.shape[2], 1) or y.shape[2] < SMALLEST:
        raise UserError(f"{path}: y has shape {y.shape}; expected (samples, n, n, 1); {how}")
    if x.shape != (*y.shape[:3], 2):
        raise UserError(f"{path}: x has shape {x.shape}; expected {(*y.shape[:3], 2)}, as of y; {how}")
    ticks = np.linspace(0, 1, y.shape[2])
    if len(x) and not np.allclose(x[0], np.dstack(np.meshgrid(ticks, ticks)), rtol=0, atol=1e-6):
        raise UserError(f"{path}: x does not hold (x, t) from 0 to 1 with a time in each row; {how}")
    return y[..., 0]


def make_burgers(rng: np.random.Generator, resolution: int) -> dict[str, ndarray]:
    return {FIELD: burgers_sample(rng, resolution)}


def burgers_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    return {FIELD: (resolution, resolution)}


RECIPE = Recipe(
    name="burgers",
    equation="u_t + u u_x = 0.01 u_xx on a circle, t from 0 to 1; u at t = 0 is Gaussian with covariance "
    "exp(-2 sin^2(pi d)) at distance d; rows are times linspace(0, 1, n), columns points linspace(0, 1, n)",
    solver="method of lines: first-order upwind differences and the three-point Laplacian with spacing "
    "1/(n - 1), LSODA with relative and absolute tolerance 1.5e-8",
    units={FIELD: "dimensionless"},
    make=make_burgers,
    shapes=burgers_shapes,
)


generate_burgers = generator(RECIPE)


def verify_burgers(root: Path) -> list[str]:
    """What is wrong with the sets in `root`, a line each."""

    grids: dict[tuple[int, ...], Path] = {}

    def check(split: Split) -> None:
        path = _path(root, split, "published")
        values = _published(path, how=_how(root, "published"))
        grids.setdefault(values.shape[1:], path)
        first, other = next(iter(grids.items()))
        if values.shape[1:] != first:
            raise UserError(
                f"{path} has {values.shape[1:]} times and points, {other} has {first}; expected the same"
            )
        require_finite(values, f"{path}: {FIELD}", how="fetch the file again")

    published = [root / name for name in PUBLISHED.values()]
    return set_problems("burgers", root, published, lambda: complaints(check, PUBLISHED))


OBSERVED = {"burgers20": 0.2, "burgers10": 0.1, "burgers5": 0.05, "burgers1": 0.01, "burgers05": 0.005}

DATASETS.register("burgers")(
    Benchmark(
        summary="Burgers' equation: a few observed values → the field, 64 times × 128 points",
        config=BurgersConfig,
        open=open_burgers,
        verify=verify_burgers,
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
        },
        resolution=RESOLUTION,
        layout=burgers_layout,
        outputs=(FIELD,),
        published=tuple(PUBLISHED.values()),
        seconds=0.03,
    )
)
