"""Plasticity benchmark: predict the motion of a forged block from the shape of the die."""

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
from linearno.data.array_set import ArraySet, StoredArray, StoredSet
from linearno.data.availability import Source
from linearno.data.baseline_training import (
    F_FNO_SIMPLIFIED,
    FLARE_TRAINING,
    LNO_TRAINING,
    f_fno,
    geo_fno,
    library,
    oformer,
    pod_gp,
)
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits, Variant
from linearno.data.field_data import FieldData
from linearno.data.generation.generate import DataGenerator, batch_that_fits
from linearno.data.sample import FieldSpec
from linearno.solvers.forging import (
    FRAMES,
    PUBLISHED_NODES,
    SCHEMES,
    mesh_resolution,
    node_rows,
    plasticity_samples,
    require_resolution,
)

CHANNELS = ("x", "y", "ux", "uy")  # deformed positions and displacements
AXES = {"input": ("n",), "output": ("n", "rows", "frames", "4")}
REST_TOLERANCE = 1e-2  # mm, of positions minus displacements between frames


def _require_rows(array: StoredArray) -> None:
    """Raise if the elements are not square."""
    if array.field == "output" and array.shape[2] != node_rows(array.shape[1]):
        raise UserError(
            f"{array.path}: output has shape {array.shape}; expected {node_rows(array.shape[1])} rows for "
            f"{array.shape[1]} columns: (samples, columns, rows, frames, 4)"
        )


FILES = ArraySet(
    "plasticity",
    axes=AXES,
    published=dict.fromkeys(("train", "test"), "plas_N987_T20.mat"),
    published_sizes={"samples": 987, "n": PUBLISHED_NODES, "frames": FRAMES},
    check=_require_rows,
)


class PlasticityConfig(DataConfig):
    """Train on the first `train` samples, test on the last `test`.

    Args:
        coords: order of the coordinates in the unit square. `scrambled`: point k has the coordinates of point
            (k mod n, k div n), unlike its fields, as in the codes of LinearNO and Transolver. `aligned`: the
            order of the fields, as in Neural-Solver-Library.
        die: order of the heights of the die. `reversed`: as stored, from left to right, whereas columns of
            points run from right to left. `aligned`: the order of the columns.
        source: published file, generated set, or `auto`: the published file if it is present.
    """

    name: Literal["plasticity"] = "plasticity"
    root: Path = Path("data/plasticity")
    train: PositiveInt = 900
    test: PositiveInt = 80
    coords: Literal["scrambled", "aligned"] = "scrambled"
    die: Literal["reversed", "aligned"] = "reversed"
    source: Source = "auto"


def open_plasticity(cfg: PlasticityConfig) -> Splits:
    """Load both splits.

    Disk   {split}_input.npy (S, n) and {split}_output.npy (S, n, m, 20, 4) as `generate` writes them, or
           `input` and `output` of the published MATLAB file
    Item   coords (N, 2) in the unit square, inputs (N, 1) the height of the die above a point's column,
           targets (N, 80): x, y, ux and uy of each point in mm, frame after frame; N = n m
    """
    stored = FILES.open(cfg.root, cfg.source, cfg.sizes, test_last=True)
    layout = plasticity_layout(cfg, stored.sizes["n"], stored.sizes["frames"])

    def split(name: str) -> FieldData:
        die = stored.read(name, "input")
        die = die.flip(1) if cfg.die == "aligned" else die
        inputs = die.repeat_interleave(stored.sizes["rows"], dim=1).unsqueeze(-1)
        return layout.fill(inputs, _read_output(stored, name).flatten(3).flatten(1, 2))

    source = f"{stored.source}; coordinates {cfg.coords}, die {cfg.die}"
    return Splits(split("train"), split("test"), source)


def plasticity_layout(
    cfg: PlasticityConfig, columns: int = PUBLISHED_NODES, frames: int = FRAMES
) -> SampleLayout:
    """Layout of samples stored with `columns` columns of points."""
    names = [f"{channel}{frame}" for frame in range(frames) for channel in CHANNELS]
    die = "die" if cfg.die == "aligned" else "die_reversed"  # figures are labelled with the name
    spec = FieldSpec(
        coords=("s", "r"),
        inputs=(die,),
        outputs=tuple(names),
        units=dict.fromkeys((die, *names), "mm"),
        grid=(columns, node_rows(columns)),
        standardised=("inputs",),
        position_outputs=tuple(name for name in names if name[0] in "xy"),
    )
    return SampleLayout(spec, unit_block(columns, node_rows(columns), scrambled=cfg.coords == "scrambled"))


def _read_output(stored: StoredSet, split: str) -> Float[Tensor, "S n m T 4"]:
    """Read positions and displacements; raise if points or frames are in the wrong order.

    Positions minus displacements must be the same grid in all frames, from right to left and top to bottom.
    """
    output = stored.read(split, "output")
    for sample, values in enumerate(output, start=stored.samples[split].start or 0):
        rest = values[..., :2] - values[..., 2:]  # n m T 2
        at_rest = (rest - rest[..., :1, :]).abs().max() <= REST_TOLERANCE
        x, y = rest[..., 0, :].unbind(-1)
        if not (at_rest and (x.diff(dim=0) < 0).all() and (y.diff(dim=1) < 0).all()):
            raise UserError(
                f"{stored.arrays[split, 'output'].path}: output of sample {sample} is no block with its "
                "points from right to left and from the top down, (x, y) less (ux, uy) the same in all "
                "frames; expected the axes samples, columns, rows, frames, and x, y, ux, uy"
            )
    return output


def unit_block(columns: int, rows: int, *, scrambled: bool) -> Float[Tensor, "N 2"]:
    """Point k is in column k div m and row k mod m: (column/(n − 1), row/(m − 1)).

    Scrambled: k mod n and k div n instead, as if the grid were stored in the other axis order.
    """
    along, down = (torch.from_numpy(np.linspace(0, 1, size)).float() for size in (columns, rows))
    if scrambled:
        return torch.cartesian_prod(down, along).flip(1)
    return torch.cartesian_prod(along, down)


def make_plasticity(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str
) -> dict[str, ndarray]:
    samples = plasticity_samples(rngs, resolution, device, scheme=scheme)
    return dict(zip((*AXES, "draws"), samples, strict=True))


def plasticity_batch(resolution: int, device: torch.device, *, scheme: str) -> int:
    """Batch size; the solver needs about 100 float64 values per element.

    Large on a GPU, because samples that fold are solved again together; on a CPU, arrays of 12,000 values
    make the overhead of calls small.
    """
    mesh = mesh_resolution(resolution, scheme)
    nodes = mesh * node_rows(mesh)
    if device.type == "cpu":
        return max(1, 12_000 // nodes)
    return batch_that_fits(device, 100 * 8 * nodes, most=512 // SCHEMES[scheme].refinement ** 2)


def plasticity_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    grid = (resolution, node_rows(resolution))
    return {"input": grid[:1], "output": (*grid, FRAMES, len(CHANNELS)), "draws": ()}


generate_plasticity = DataGenerator(
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
    shapes=plasticity_shapes,
    make_batch=make_plasticity,
    batch_size=plasticity_batch,
    schemes={name: scheme.description for name, scheme in SCHEMES.items()},
)

LINEARNO = {"stem": "conv", "merge_layers": 2, "temperature": None, "time": True}
TRANSOLVER = {"stem": "conv", "time": True}

DATASETS.register("plasticity")(
    Benchmark(
        summary="Plasticity: shape of a die → a block forged by it, 20 frames at 101×31 points",
        config=PlasticityConfig,
        open=open_plasticity,
        verify=partial(FILES.verify, inspect=_read_output),
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
            "transolver++": Variant(
                settings={"time": True},
                training={"weight_decay": 1e-5, "clip": 0.1},
                summary="Transolver++ at any points; sizes and training as Transolver here (our settings).",
            ),
            "lno": Variant(
                settings={"depth": 4, "time": True},
                training=LNO_TRAINING,
                task={"updates": "batch"},
                summary="LNO: time as a coordinate, one-cycle over 20 % up, weight decay 5e-5; frames are "
                "samples of a batch (published: points of one sample).",
            ),
            "lrsa": Variant(
                settings={"point_mlp": "conv", "time": True},
                training={"weight_decay": 1e-5},
                summary="LRSA: 64 slices; convolutions, frequencies and training as Transolver's are our "
                "settings.",
            ),
            "flare": Variant(
                settings={"slices": 128, "time": True},
                training=FLARE_TRAINING,
                summary="FLARE: 128 slices and the embedding of time are our settings; batches of 2, fp32.",
            ),
            "flare++": Variant(
                settings={"time": True},
                training=FLARE_TRAINING,
                summary="FLARE++: width 128, trained as FLARE; 64 slices and the embedding of time are our "
                "settings.",
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
            "galerkin": library("Galerkin Transformer", mlp_ratio=1, time=True),
            "gnot": library("GNOT", mlp_ratio=1, time=True),
            "oformer": oformer("sizes published for Darcy", resolution=56, time=True),
            "factformer": library("FactFormer", note=" with our sizes", time=True),
            "ono": library("ONO", width=32, mlp_ratio=1, eigenfunctions=8, time=True),
            "fno": library("FNO", width=128, time=True),
            "u-fno": library("U-FNO", width=128, norm="instance", time=True),
            "geo-fno": geo_fno(source="with an embedding of time (our settings)", time=True),
            "f-fno": f_fno("our settings", time=True, append="grid"),
            "f-fno-nsl": library("Simplified F-FNO", model="f-fno", **F_FNO_SIMPLIFIED, width=128, time=True),
            "lsm": library("LSM", width=32, norm="instance", time=True),
            "pod-gp": pod_gp(task={"name": "direct"}),
        },
        resolution=PUBLISHED_NODES,
        layout=plasticity_layout,
        outputs=("output",),
        published=FILES.published_names,
        small={"train": 50, "test": 6},
    )
)
