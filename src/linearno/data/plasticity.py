"""Plasticity: from the shape of a die to the places of a block's points while it is forged."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.array_files import (
    Files,
    Stored,
    asked_of,
    open_stored,
    read_finite,
    require_shape,
    samples_of,
    side_of,
)
from linearno.data.availability import Source, complaints, require_samples, set_problems, verify_tells
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits, Variant
from linearno.data.field_data import FieldData
from linearno.data.generation.generate import Recipe, batch_that_fits, generator
from linearno.data.sample import FieldSpec
from linearno.solvers.forging import (
    FRAMES,
    PUBLISHED_NODES,
    SCHEMES,
    mesh_of,
    plasticity_samples,
    require_resolution,
    rows_of,
)

PUBLISHED, SAMPLES = "plas_N987_T20.mat", 987
CHANNELS = ("x", "y", "ux", "uy")  # deformed places and displacements
AXES = {"input": ("n",), "output": ("n", "rows", "frames", "4")}
FILES = Files("plasticity", AXES, dict.fromkeys(("train", "test"), PUBLISHED))
REST = 1e-2  # mm by which places less displacements may differ from frame to frame


class PlasticityConfig(DataConfig):
    """Train on the first `train` samples and test on the last `test`, of the published file or two made here.

    Two particulars of the published protocol can be mended. `coords`, the places in the unit square that a
    model is told:
    scrambled  in another order than the fields: point k has the coordinates of point (k mod n, k div n), as
               LinearNO's and Transolver's codes have it
    aligned    each point its own, as Neural-Solver-Library has it
    `die`, its height above each column of points:
    reversed   as stored: from left to right, while the columns run from right to left
    aligned    that of the column itself
    """

    name: Literal["plasticity"] = "plasticity"
    root: Path = Path("data/plasticity")
    train: PositiveInt = 900
    test: PositiveInt = 80
    coords: Literal["scrambled", "aligned"] = "scrambled"
    die: Literal["reversed", "aligned"] = "reversed"
    source: Source = "auto"


def open_plasticity(cfg: PlasticityConfig) -> Splits:
    """Both splits in memory.

    Disk   {split}_input.npy (S, n) and {split}_output.npy (S, n, m, 20, 4) as `generate` writes them, or
           `input` and `output` of the published MATLAB file
    Item   coords (N, 2) in the unit square, inputs (N, 1) the height of the die above a point's column,
           targets (N, 80): x, y, ux and uy of each point in mm, frame after frame; N = n m
    """
    arrays, source = open_stored(FILES, cfg.root, cfg.source)
    for array in arrays:
        _require_shape(array, arrays)
        require_samples(array.path, array.field, array.shape[0], asked_of(array, arrays, cfg.sizes))
    columns, rows, frames = arrays[1].shape[1:4]
    layout = plasticity_layout(cfg, columns, frames)
    how = verify_tells("plasticity", cfg.root)
    read = {(array.split, array.field): _read(array, samples_of(array, cfg.sizes), how) for array in arrays}

    def split(name: str) -> FieldData:
        die = read[name, "input"]
        die = die.flip(1) if cfg.die == "aligned" else die
        inputs = die.repeat_interleave(rows, dim=1).unsqueeze(-1)
        return layout.filled(inputs, read[name, "output"].flatten(3).flatten(1, 2))

    return Splits(split("train"), split("test"), f"{source}; coordinates {cfg.coords}, die {cfg.die}")


def plasticity_layout(
    cfg: PlasticityConfig, columns: int = PUBLISHED_NODES, frames: int = FRAMES
) -> SampleLayout:
    """Of samples stored with so many columns of points."""
    names = [f"{channel}{frame}" for frame in range(frames) for channel in CHANNELS]
    die = "die" if cfg.die == "aligned" else "die_reversed"  # pictures say what they show
    spec = FieldSpec(
        coords=("s", "r"),
        inputs=(die,),
        outputs=tuple(names),
        units=dict.fromkeys((die, *names), "mm"),
        grid=(columns, rows_of(columns)),
        standardised=("inputs",),
        position_outputs=tuple(name for name in names if name[0] in "xy"),
    )
    return SampleLayout(spec, unit_block(columns, rows_of(columns), scrambled=cfg.coords == "scrambled"))


def _read(array: Stored, samples: slice, how: str) -> Tensor:
    values = read_finite(array, (samples, *(slice(None),) * (len(array.shape) - 1)), how=how)
    if array.field == "output":
        _require_order(array, values, samples.start or 0)
    return values


def unit_block(columns: int, rows: int, *, scrambled: bool) -> Float[Tensor, "N 2"]:
    """Point k is in column k div m and row k mod m: (column/(n − 1), row/(m − 1)).

    Scrambled: with k mod n and k div n in their place, as if the grid were stored the other way round.
    """
    along, down = (torch.from_numpy(np.linspace(0, 1, size)).float() for size in (columns, rows))
    if scrambled:
        return torch.cartesian_prod(down, along).flip(1)
    return torch.cartesian_prod(along, down)


def _require_shape(array: Stored, arrays: Sequence[Stored]) -> None:
    """As many samples, columns and frames as the other arrays, and the rows of square elements."""
    side = side_of(list(arrays))
    require_shape(array, FILES, side)
    if array.path.name == PUBLISHED and (array.shape[0], side) != (SAMPLES, PUBLISHED_NODES):
        raise UserError(
            f"{array.path}: {array.field} has {array.shape[0]} samples of {side} columns; the published file "
            f"has {SAMPLES} of {PUBLISHED_NODES}: another file, or its axes are swapped"
        )
    frames = arrays[1].shape[3]
    samples = next(other.shape[0] for other in arrays if other.split == array.split)
    expected: tuple[int, ...] = (samples, side)
    if array.field == "output":
        expected = (*expected, rows_of(side), frames, len(CHANNELS))
    if array.shape != expected:
        raise UserError(
            f"{array.path}: {array.field} has shape {array.shape}; expected {expected}: samples, columns"
            f"{', rows, frames and x, y, ux, uy' if array.field == 'output' else ''}"
        )
    if array.path.name == PUBLISHED and array.field == "output" and frames != FRAMES:
        raise UserError(f"{array.path}: output has {frames} frames; the published file has {FRAMES}")


def _require_order(array: Stored, output: Float[Tensor, "S n m T 4"], first: int) -> None:
    """Places less displacements are one grid in all frames, from right to left and from the top down."""
    for sample, values in enumerate(output, start=first):
        rest = values[..., :2] - values[..., 2:]  # n m T 2
        still = (rest - rest[..., :1, :]).abs().max() <= REST
        x, y = rest[..., 0, :].unbind(-1)
        if not (still and (x.diff(dim=0) < 0).all() and (y.diff(dim=1) < 0).all()):
            raise UserError(
                f"{array.path}: output of sample {sample} is no block with its points from right to left and "
                "from the top down, (x, y) less (ux, uy) the same in all frames; expected the axes samples, "
                "columns, rows, frames, and x, y, ux, uy"
            )


def make_plasticity(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str
) -> dict[str, ndarray]:
    samples = plasticity_samples(rngs, resolution, device, scheme=scheme)
    return dict(zip((*AXES, "draws"), samples, strict=True))


def plasticity_batch(resolution: int, device: torch.device, *, scheme: str) -> int:
    """A step holds about 100 arrays of float64 for each element. 256 samples at full size fill the largest
    GPU; but where a block of a batch folds it is solved again, so there should be few batches. On a CPU
    arrays of 12,000 numbers are long enough for their calls to cost little."""
    mesh = mesh_of(resolution, scheme)
    nodes = mesh * rows_of(mesh)
    if device.type == "cpu":
        return max(1, 12_000 // nodes)
    return batch_that_fits(device, 100 * 8 * nodes, most=512 // SCHEMES[scheme].finer ** 2)


def plasticity_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    grid = (resolution, rows_of(resolution))
    return {"input": grid[:1], "output": (*grid, FRAMES, len(CHANNELS)), "draws": ()}


RECIPE = Recipe(
    name="plasticity",
    equation="rho u_tt = div sigma in a block of 50 mm x 15 mm in plane stress, J2 plasticity without "
    "hardening: E = 200 GPa, nu = 0.3, rho = 7850 kg/m3, yield stress 70 MPa; its bottom slides on a plane, "
    "a rigid die without friction comes down at 3 m/s, a cubic spline (not-a-knot) through 9 even knots, "
    "the outer two 7.5 mm above the lowest, one of the inner five, and the others ~ U[1.7, 7.8] mm above it, "
    "drawn again where it reaches more than 0.1 mm below its lowest knot, and begins 0.1 mm above the block; "
    "input = height of the die at the columns, from left to right; output = x, y, ux, uy of the points from "
    "right to left and from the top down at 0, 0.1, ..., 1.9 ms",
    solver="explicit finite elements in float64: one-point quads with hourglass control, Jaumann's rate, "
    "return mapping, contact by penalty, 0.6 of the largest stable step at rest, mass added to elements that "
    "are squeezed below it; a die that folds elements is drawn again: draws is the draw that was kept",
    units={"input": "mm", "output": "mm", "draws": "count"},
    make=None,
    shapes=plasticity_shapes,
    make_batch=make_plasticity,
    batch_size=plasticity_batch,
    schemes={name: scheme.words for name, scheme in SCHEMES.items()},
)

generate_plasticity = generator(RECIPE)


def verify_plasticity(root: Path) -> list[str]:
    """What is wrong with the sets in `root`, a line each."""
    return set_problems("plasticity", root, [root / PUBLISHED], lambda: _problems(root))


def _problems(root: Path) -> Iterator[str]:
    """Of the published file."""
    try:
        arrays, _ = open_stored(FILES, root, "published")
    except UserError as error:
        yield str(error)
        return

    def check(array: Stored) -> None:
        _require_shape(array, arrays)
        _read(array, slice(None), "fetch the file again")

    yield from complaints(check, arrays[: len(AXES)])


LINEARNO = {"stem": "conv", "merge_layers": 2, "temperature": None, "time": True}
TRANSOLVER = {"stem": "conv", "time": True}

DATASETS.register("plasticity")(
    Benchmark(
        summary="Plasticity: shape of a die → a block forged by it, 20 frames at 101×31 points",
        config=PlasticityConfig,
        open=open_plasticity,
        verify=verify_plasticity,
        generate=generate_plasticity,
        protocol={"batch": 8, "precision": "bf16", "checkpoint_seconds": 30},
        task={"name": "timed", "channels": 4},  # as published: one update of the weights per frame
        models={
            "linearno": Variant(
                settings=LINEARNO,
                summary="LinearNO: AdamW, one-cycle to 1e-3, weight decay 1e-6, gradients clipped at 1, an "
                "update a frame.",
            ),
            "transolver": Variant(
                settings=TRANSOLVER,
                training={"weight_decay": 1e-5, "clip": 0.1},
                summary="Transolver: weight decay 1e-5, gradients clipped at 0.1, an update a frame.",
            ),
            "linearno-at-once": Variant(
                model="linearno",
                settings=LINEARNO,
                task={"updates": "batch"},
                summary="LinearNO with one update for all frames of a batch: faster, not the published loop.",
            ),
            "transolver-at-once": Variant(
                model="transolver",
                settings=TRANSOLVER,
                training={"weight_decay": 1e-5, "clip": 0.1},
                task={"updates": "batch"},
                summary="Transolver with one update for all frames of a batch: not the published loop.",
            ),
        },
        resolution=PUBLISHED_NODES,
        layout=plasticity_layout,
        outputs=("output",),
        published=(PUBLISHED,),
        seconds=10.0,
        slower={"fine": 8.0},
    )
)
