"""Airfoil: from the shape of an airfoil to the Mach number around it, on a C-grid that follows it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_files import Files, Stored, require_stride
from linearno.data.availability import Source
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits, Variant
from linearno.data.body_fitted import (
    Curved,
    curved_problems,
    open_curved,
    read_curved,
    require_channels,
    require_same_samples,
    require_whole,
    samples_of_split,
)
from linearno.data.field_data import FieldData
from linearno.data.generation.generate import Recipe, batch_that_fits, generator
from linearno.data.sample import FieldSpec
from linearno.solvers.airfoil import (
    CONTROLS,
    OUTWARDS,
    UNIT,
    airfoil_samples,
    grid_shape,
    paired_nodes,
    require_resolution,
)

RESOLUTION = 221  # nodes along airfoil and wake of the published files
CHANNELS = ("density", "ux", "uy", "p", "mach")
GRID = (f"{UNIT} n + 1", f"{OUTWARDS} n + 1")
AXES = {"X": GRID, "Y": GRID, "Q": ("5", *GRID)}
PUBLISHED = {field: f"NACA_Cylinder_{field}.npy" for field in AXES}
AIRFOIL = Curved(Files("airfoil", AXES, {}), PUBLISHED, CHANNELS)
VIEW = (-0.6, 1.6), (-0.7, 0.7)  # what pictures show of 80 × 80 chords


class AirfoilConfig(DataConfig):
    """Train on the first `train` samples; test on the next `test` of the published files, which hold all
    samples, or on the first of the generated ones."""

    name: Literal["airfoil"] = "airfoil"
    root: Path = Path("data/airfoil")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    stride: PositiveInt = 1  # every node of 221 × 51
    source: Source = "auto"


def open_airfoil(cfg: AirfoilConfig) -> Splits:
    """Both splits in memory, every `stride`-th node of the stored grid.

    Disk   {split}_{X,Y}.npy (S, 221, 51) and {split}_Q.npy (S, 5, 221, 51) as `generate` writes them, or the
           published NACA_Cylinder_{X,Y,Q}.npy, with all samples in one file
    Item   coords (N, 2) of its own, no inputs, targets (N, 1) = Mach number, N = 11,271
    Rows of the grid run outwards from airfoil and wake; they follow each other from the end of the wake above
    it, around the airfoil, and back below. Nothing is scaled.
    """

    def first(held: int) -> int:
        return cfg.train

    arrays, source = open_curved(AIRFOIL, cfg.root, cfg.source, cfg.sizes, first)
    for array in arrays:
        _require_shape(array, arrays)
    require_same_samples(arrays, cfg.sizes)
    require_whole(arrays, AIRFOIL)
    spec = airfoil_layout(cfg, arrays[0].shape[1]).spec
    train, test = (
        _read(arrays, split, spec, samples_of_split(arrays, split, cfg.sizes, first), cfg.stride)
        for split in ("train", "test")
    )
    return Splits(train, test, source)


def airfoil_layout(cfg: AirfoilConfig, stored: int = RESOLUTION) -> SampleLayout:
    """Of samples stored with so many nodes along airfoil and wake."""
    require_stride(cfg.stride, stored, stored // UNIT)
    grid = tuple((size - 1) // cfg.stride + 1 for size in grid_shape(stored))
    return SampleLayout(FieldSpec(coords=("x", "y"), outputs=("mach",), grid=grid, plot_extent=VIEW))


def _require_shape(array: Stored, arrays: list[Stored]) -> None:
    axes, side = ("samples", *AXES[array.field]), arrays[0].shape[1] if len(arrays[0].shape) == 3 else 0
    fits = len(array.shape) == len(axes) and side % UNIT == 1 and array.shape[-2:] == grid_shape(side)
    if not fits:
        raise UserError(
            f"{array.path}: {array.field} has shape {array.shape}; expected ({', '.join(axes)}) with the "
            "same n in every file, 10 in the published ones: 221 nodes along the airfoil, then 51 outwards"
        )
    require_channels(array, AIRFOIL)


def _read(arrays: list[Stored], split: str, spec: FieldSpec, samples: slice, stride: int) -> FieldData:
    fields = {array.field: array for array in arrays if array.split == split}
    data = read_curved(fields, spec, samples, stride=stride, channel=CHANNELS.index("mach"), name="airfoil")
    assert spec.grid
    nodes = data.coords.unflatten(1, spec.grid)
    _require_order(fields["X"].path, nodes, paired_nodes(fields["X"].shape[1]) // stride, samples.start)
    return data


def _read_published(arrays: list[Stored]) -> FieldData:
    spec = airfoil_layout(AirfoilConfig(), arrays[0].shape[1]).spec
    return _read(arrays, "both", spec, slice(0, arrays[0].shape[0]), stride=1)


def _require_order(path: Path, nodes: torch.Tensor, paired: int, first: int) -> None:
    """Both sides of the wake meet in the first column, the upper comes first, the nose looks to the left."""
    apart = nodes[:, :paired, 0] != nodes[:, nodes.shape[1] - paired :, 0].flip(1)
    below, nose = nodes[:, 0, -1, 1] <= nodes[:, -1, -1, 1], nodes[:, nodes.shape[1] // 2, :, 0]
    wrong = apart.flatten(1).any(dim=1) | below | (nose[:, 0] <= nose[:, -1])
    if wrong.any():
        raise UserError(
            f"{path}: the nodes of sample {first + int(wrong.nonzero()[0])} do not run around an airfoil: "
            "expected (samples, from the end of the wake above it and back below, outwards)"
        )


def make_airfoil(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> dict[str, ndarray]:
    room = None if device.type == "cpu" else airfoils_at_once(resolution, device)
    return airfoil_samples(rngs, resolution, device, room)._asdict()


def airfoils_at_once(resolution: int, device: torch.device) -> int:
    """The solver holds a dense matrix in float32 for each pair of lines outwards, and half as much again to
    work in."""
    lines, nodes = grid_shape(resolution)
    return batch_that_fits(device, 6 * (lines // 2 + 1) * (8 * nodes) ** 2, most=512)


def airfoil_batch(resolution: int, device: torch.device) -> int:
    """Several times what is solved at once: at the end of a batch a few flows take long."""
    return airfoils_at_once(resolution, device) * (1 if device.type == "cpu" else 4)


def airfoil_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    grid = grid_shape(resolution)
    return {"X": grid, "Y": grid, "Q": (len(CHANNELS), *grid), "theta": (CONTROLS,), "res": (), "draws": ()}


RECIPE = Recipe(
    name="airfoil",
    equation="steady Euler equations of a gas, gamma = 1.4; far away density 1, pressure 1, Mach number 0.8 "
    "along x; no flow through the airfoil, NACA 0012 lifted by a box around it, cubic along x between 4 "
    "controls from -0.25 to 1.25, linear across from -0.1 to 0.1, with heights theta, the first 0, the "
    "others ~ U[-0.05, 0.05]; X, Y = nodes of a C-grid, Q = density, ux, uy, pressure, Mach number there",
    solver="finite volumes around the nodes, Roe's flux, van Albada's limiter along grid lines; implicit "
    "march to a residual res of 1e-6 of the first; an airfoil whose flow does not become steady is drawn "
    "again: draws is the draw that was kept, usually 1",
    units=dict.fromkeys(("X", "Y", "Q", "theta", "res"), "dimensionless") | {"draws": "count"},
    make=None,
    shapes=airfoil_shapes,
    make_batch=make_airfoil,
    batch_size=airfoil_batch,
)

DATASETS.register("airfoil")(
    Benchmark(
        summary="Airfoil: shape of an airfoil at Mach 0.8 → Mach number, 221×51 points that follow it",
        config=AirfoilConfig,
        open=open_airfoil,
        verify=partial(curved_problems, AIRFOIL, _require_shape, _read_published),
        generate=generator(RECIPE),
        protocol={"batch": 4, "weight_decay": 1e-5, "precision": "bf16", "checkpoint_seconds": 30},
        models={
            "linearno": Variant(
                settings={"stem": "conv", "merge_layers": 2},
                summary="LinearNO: AdamW, one-cycle to 1e-3, batches of 4, gradients clipped at 1; unscaled.",
            ),
            "transolver": Variant(
                settings={"stem": "conv"},
                training={"clip": 0.1},
                summary="Transolver: as LinearNO, gradients clipped at 0.1.",
            ),
        },
        resolution=RESOLUTION,
        layout=airfoil_layout,
        outputs=("Q",),
        channels=("Q",),
        published=tuple(PUBLISHED.values()),
        seconds=16.0,
        growth=2.5,
    )
)
