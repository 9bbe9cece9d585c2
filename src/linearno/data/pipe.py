"""Pipe: from the shape of a curved pipe to the speed of the flow through it, on a grid that follows it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, FieldData, Splits
from linearno.data.card import open_array, require_finite
from linearno.data.generate import Recipe, batch_that_fits, generator
from linearno.data.sample import FieldSpec
from linearno.data.sources import (
    Source,
    choose_source,
    complaints,
    how_to_make,
    require_samples,
    set_problems,
)
from linearno.data.stored import (
    Files,
    Stored,
    open_stored,
    read_finite,
    require_shape,
    require_stride,
    side_of,
)
from linearno.solvers.pipe import pipe_samples, require_resolution

CHANNELS = ("ux", "uy", "p")
AXES = {"X": ("n", "n"), "Y": ("n", "n"), "Q": ("3", "n", "n")}
PUBLISHED = {field: f"Pipe_{field}.npy" for field in AXES}
FILES = Files("pipe", AXES, {})
VERIFY = "`linearno data verify pipe` tells more"


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
    arrays, source = _stored(cfg)
    side = side_of(arrays)
    for array in arrays:
        _require_shape(array, side)
    _require_samples(arrays, cfg)
    require_stride(cfg.stride, side, side - 1)
    points = (side - 1) // cfg.stride + 1
    spec = FieldSpec(coords=("x", "y"), outputs=("ux",), grid=(points, points), scaled=("coords", "outputs"))
    train, test = (_read(arrays, split, spec, cfg) for split in ("train", "test"))
    return Splits(train, test, source)


def _stored(cfg: PipeConfig) -> tuple[list[Stored], str]:
    """The arrays of both splits, train before test, and where they come from."""
    if choose_source(cfg.root, cfg.source, PUBLISHED.values()) == "generated":
        return open_stored(FILES, cfg.root, "generated")
    fields = _published(cfg.root)
    held = fields[0].shape[0]
    first = _first_of_test(held, cfg)
    words = f"published files {', '.join(PUBLISHED.values())} in {cfg.root}"
    both = [field._replace(split=split) for split in ("train", "test") for field in fields]
    return both, f"{words}, tested on samples {first} to {first + cfg.test - 1}"


def _published(root: Path) -> list[Stored]:
    how = f"fetch the published files again, or {how_to_make('pipe', root)}"
    arrays = []
    for field, name in PUBLISHED.items():
        array = open_array(root / name, how=how)
        arrays.append(Stored("both", field, root / name, array.shape, array.__getitem__))
    return arrays


def _require_shape(array: Stored, side: int) -> None:
    require_shape(array, FILES, side)
    if array.field == "Q" and array.shape[1] != len(CHANNELS):
        raise UserError(
            f"{array.path}: Q has {array.shape[1]} channels; expected {len(CHANNELS)}: {', '.join(CHANNELS)}"
        )


def _require_samples(arrays: list[Stored], cfg: PipeConfig) -> None:
    """Every field has the same samples of a split, and enough of them."""
    for array in arrays:
        held, first = array.shape[0], next(other for other in arrays if other.split == array.split)
        if held != first.shape[0]:
            raise UserError(
                f"{array.path} holds {held} samples of {array.field}, but {first.path} holds "
                f"{first.shape[0]} of {first.field}; expected as many"
            )
        here = {other.split: getattr(cfg, other.split) for other in arrays if other.path == array.path}
        require_samples(array.path, array.field, held, here)


def _read(arrays: list[Stored], split: str, spec: FieldSpec, cfg: PipeConfig) -> FieldData:
    """The asked-for samples and points of a split."""
    every, samples = slice(None, None, cfg.stride), _samples(arrays, split, cfg)
    grids = {a.field: a for a in arrays if a.split == split}
    x, y = (read_finite(grids[field], (samples, every, every), how=VERIFY) for field in "XY")
    ux = read_finite(grids["Q"], (samples, slice(1), every, every), how=VERIFY)
    _require_order(grids["X"].path, "X", x, 1, samples.start)
    _require_order(grids["Y"].path, "Y", y, 2, samples.start)
    return FieldData(spec, torch.stack([x, y], dim=-1).flatten(1, 2), None, ux.flatten(1)[..., None])


def _samples(arrays: list[Stored], split: str, cfg: PipeConfig) -> slice:
    """Which samples of its file a split takes: a file of its own is read from the start."""
    paths = {array.path for array in arrays if array.field == "Q"}
    if split == "train" or len(paths) == 2:
        return slice(0, getattr(cfg, split))
    first = _first_of_test(arrays[-1].shape[0], cfg)
    return slice(first, first + cfg.test)


def _first_of_test(held: int, cfg: PipeConfig) -> int:
    return held - cfg.test if cfg.test_split == "last200" else cfg.train


def _require_order(path: Path, field: str, values: Tensor, axis: int, first: int) -> None:
    """X grows along the pipe, from row to row, and Y across it, within a row."""
    grows = (values.diff(dim=axis) > 0).flatten(1).all(dim=1)
    if not grows.all():
        wrong = first + int((~grows).nonzero()[0])
        raise UserError(
            f"{path}: {field} of sample {wrong} does not grow along axis {axis}; "
            "expected (samples, along the pipe, across it)"
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

generate_pipe = generator(RECIPE)


def verify_pipe(root: Path) -> list[str]:
    """What is wrong with the sets in `root`, a line each."""
    return set_problems("pipe", root, [root / name for name in PUBLISHED.values()], lambda: _problems(root))


def _problems(root: Path) -> Iterator[str]:
    """Of the published files."""
    try:
        arrays = _published(root)
    except UserError as error:
        yield str(error)
        return

    def check(array: Stored) -> None:
        _require_shape(array, side_of(arrays))
        require_finite(array.read((slice(None),)), f"{array.path}: {array.field}", how="fetch the file again")

    yield from complaints(check, arrays)


DATASETS.register("pipe")(
    Benchmark(
        summary="Pipe: shape of a curved pipe → speed along it, 129×129 points that follow the pipe",
        config=PipeConfig,
        open=open_pipe,
        verify=verify_pipe,
        generate=generate_pipe,
        resolution=129,
        outputs=("Q",),
        channels=("Q",),
        published=tuple(PUBLISHED.values()),
        seconds=1.5,
    )
)
