"""Pipe: from the shape of a curved pipe to the speed of the flow through it, on a grid that follows it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.array_files import Files, Stored, require_shape, require_stride, side_of
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
from linearno.solvers.pipe import pipe_samples, require_resolution

RESOLUTION = 129  # points a side of the published files
CHANNELS = ("ux", "uy", "p")
AXES = {"X": ("n", "n"), "Y": ("n", "n"), "Q": ("3", "n", "n")}
PUBLISHED = {field: f"Pipe_{field}.npy" for field in AXES}
PIPE = Curved(Files("pipe", AXES, {}), PUBLISHED, CHANNELS)
SLIP = 0.02  # of the mean speed, allowed at the walls: a few published samples have spikes at a corner


class PipeConfig(DataConfig):
    """Train on the first `train` samples. In the published files, which hold all samples, `test_split` says
    where those of the test lie; the names tell the usual number, `test` the one that is taken.

    last200   the last ones of the file, as LinearNO's code does: 2110 to 2309
    next200   those after the training samples, as Transolver and Neural-Solver-Library do: 1000 to 1199
    """

    name: Literal["pipe"] = "pipe"
    root: Path = Path("data/pipe")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    test_split: Literal["last200", "next200"] = "last200"
    stride: PositiveInt = 1  # every point of 129 a side
    source: Source = "auto"


def open_pipe(cfg: PipeConfig) -> Splits:
    """Both splits in memory, every `stride`-th point of the stored grid.

    Disk   {split}_{X,Y}.npy (S, n, n) and {split}_Q.npy (S, 3, n, n) as `generate` writes them, or the
           published Pipe_{X,Y,Q}.npy, with all samples in one file; Q is ux, uy and p
    Item   coords (N, 2) of its own, no inputs, targets (N, 1) = ux, N = s², s = (n − 1)/stride + 1
    Rows of the grid run across the pipe from its lower wall, and follow each other from inlet to outlet.
    """
    first = partial(_first_of_test, cfg)
    arrays, source = open_curved(PIPE, cfg.root, cfg.source, cfg.sizes, first)
    for array in arrays:
        _require_shape(array, arrays)
    require_same_samples(arrays, cfg.sizes)
    require_whole(arrays, PIPE)
    spec = pipe_layout(cfg, side_of(arrays)).spec
    train, test = (
        _read(arrays, split, spec, samples_of_split(arrays, split, cfg.sizes, first), cfg.stride)
        for split in ("train", "test")
    )
    return Splits(train, test, source)


def pipe_layout(cfg: PipeConfig, stored: int = RESOLUTION) -> SampleLayout:
    """Of samples stored at so many points a side."""
    require_stride(cfg.stride, stored, stored - 1)
    side = (stored - 1) // cfg.stride + 1
    return SampleLayout(
        FieldSpec(coords=("x", "y"), outputs=("ux",), grid=(side, side), standardised=("coords", "outputs"))
    )


def _first_of_test(cfg: PipeConfig, held: int) -> int:
    return held - cfg.test if cfg.test_split == "last200" else cfg.train


def _require_shape(array: Stored, arrays: list[Stored]) -> None:
    require_shape(array, PIPE.files, side_of(arrays))
    require_channels(array, PIPE)


def _read(arrays: list[Stored], split: str, spec: FieldSpec, samples: slice, stride: int) -> FieldData:
    """The asked-for samples and points of a split."""
    fields = {array.field: array for array in arrays if array.split == split}
    data = read_curved(fields, spec, samples, stride=stride, channel=0, name="pipe")
    assert spec.grid
    for axis, field in enumerate("XY"):
        values = data.coords[..., axis].unflatten(1, spec.grid)
        _require_order(fields[field].path, field, values, axis + 1, samples.start)
    _require_walls(fields["Q"].path, data.targets.unflatten(1, spec.grid).squeeze(-1), samples.start)
    return data


def _read_published(arrays: list[Stored]) -> FieldData:
    spec = pipe_layout(PipeConfig(), side_of(arrays)).spec
    return _read(arrays, "both", spec, slice(0, arrays[0].shape[0]), stride=1)


def _require_order(path: Path, field: str, values: Tensor, axis: int, first: int) -> None:
    """X grows along the pipe, from row to row, and Y across it, within a row."""
    grows = (values.diff(dim=axis) > 0).flatten(1).all(dim=1)
    if not grows.all():
        wrong = first + int((~grows).nonzero()[0])
        raise UserError(
            f"{path}: {field} of sample {wrong} does not grow along axis {axis}; "
            "expected (samples, along the pipe, across it)"
        )


def _require_walls(path: Path, speed: Float[Tensor, "S n n"], first: int) -> None:
    """The grid is square, so that its shape does not show if axes of Q are swapped; but at walls ux is 0."""
    at_walls, inside = (part.abs().mean(dim=(1, 2)) for part in (speed[..., [0, -1]], speed[..., 1:-1]))
    if (at_walls > SLIP * inside).any():
        wrong = first + int((at_walls > SLIP * inside).nonzero()[0])
        raise UserError(
            f"{path}: ux of sample {wrong} is not zero at the walls of the pipe; "
            "expected (samples, channels, along the pipe, across it)"
        )


def make_pipe(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> dict[str, ndarray]:
    return dict(zip((*AXES, "draws"), pipe_samples(rngs, resolution, device), strict=True))


def pipe_batch(resolution: int, device: torch.device) -> int:
    """The solver holds about 60 kB for each element, a GPU some more to work in; 64 samples keep it busy."""
    return batch_that_fits(device, 80_000 * (resolution // 2) ** 2, most=64)


def pipe_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    grid = (resolution, resolution)
    return {"X": grid, "Y": grid, "Q": (len(CHANNELS), *grid), "draws": ()}


RECIPE = Recipe(
    name="pipe",
    equation="u . grad u - 0.005 Laplacian u + grad p = 0, div u = 0 in a pipe of length 10 and vertical "
    "width 1; u = (t (1 - t), 0) at the inlet, t from 0 to 1 upwards, u = 0 on the walls, 0.005 du/dn = p n "
    "at the outlet; the centre line starts at 0 and has 4 cubic Hermite pieces, heights ~ U[-1, 1], slopes ~ "
    "U[-2, 2] for each piece; X, Y = nodes, Q = ux, uy, p there",
    solver="Taylor-Hood elements (Q2-Q1), Newton's method until a step is below 1e-6 of the velocity, nested "
    "dissection; a pipe whose flow is not found is drawn again: draws is the draw that was kept, usually 1",
    units={"X": "dimensionless", "Y": "dimensionless", "Q": "dimensionless", "draws": "count"},
    make=None,
    shapes=pipe_shapes,
    make_batch=make_pipe,
    batch_size=pipe_batch,
)

DATASETS.register("pipe")(
    Benchmark(
        summary="Pipe: shape of a curved pipe → speed along it, 129×129 points that follow the pipe",
        config=PipeConfig,
        open=open_pipe,
        verify=partial(curved_problems, PIPE, _require_shape, _read_published),
        generate=generator(RECIPE),
        protocol={"weight_decay": 1e-5, "precision": "bf16", "checkpoint_seconds": 30},
        models={
            "linearno": Variant(
                settings={"stem": "conv", "merge_layers": 2},
                data={"test_split": "last200"},
                summary="LinearNO: AdamW, one-cycle to 1e-3, batches of 4, gradients clipped at 1; tested on "
                "the last 200.",
            ),
            "transolver": Variant(
                settings={"stem": "conv", "mlp_ratio": 2},
                data={"test_split": "next200"},
                training={"batch": 8, "clip": 0.1},
                summary="Transolver: MLPs of twice the width, batches of 8, gradients clipped at 0.1; tested "
                "on the next 200.",
            ),
        },
        resolution=RESOLUTION,
        layout=pipe_layout,
        outputs=("Q",),
        channels=("Q",),
        published=tuple(PUBLISHED.values()),
        seconds=1.5,
        growth=2.5,
    )
)
