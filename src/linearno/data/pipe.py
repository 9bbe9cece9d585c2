"""Pipe benchmark: predict the velocity along a curved pipe on a body-fitted grid."""

from functools import partial
from pathlib import Path
from typing import Literal

import torch
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_set import ArraySet, StoredSet, require_stride
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
from linearno.data.body_fitted import Nodes, Values, body_fitted_splits, read_nodes
from linearno.data.generation.generate import DataGenerator, batch_that_fits
from linearno.data.sample import FieldSpec
from linearno.solvers.pipe import pipe_samples, require_resolution

RESOLUTION = 129  # points a side of the published files
AXES = {"X": ("n", "n"), "Y": ("n", "n"), "Q": ("3", "n", "n")}  # Q is ux, uy and p
FILES = ArraySet(
    "pipe",
    axes=AXES,
    published={field: f"Pipe_{field}.npy" for field in AXES},
    published_sizes={"samples": 2310, "n": RESOLUTION},
)
MAX_WALL_SPEED = 0.02  # mean |ux| at the walls over that inside; published samples have spikes in corners


class PipeConfig(DataConfig):
    """Train on the first `train` samples.

    Args:
        test_split: test samples of the published files, which contain all samples. `last200`: the last `test`
            samples, as in LinearNO's code. `next200`: the `test` samples after the training samples, as in
            Transolver and Neural-Solver-Library. The names refer to the default of 200.
        stride: read every `stride`-th point; 1 reads all 129 a side.
        source: published files, generated set, or `auto`: the published files if they are present.
    """

    name: Literal["pipe"] = "pipe"
    root: Path = Path("data/pipe")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    test_split: Literal["last200", "next200"] = "last200"
    stride: PositiveInt = 1
    source: Source = "auto"


def open_pipe(cfg: PipeConfig) -> Splits:
    """Load both splits, every `stride`-th point of the stored grid.

    Disk   {split}_{X,Y}.npy (S, n, n) and {split}_Q.npy (S, 3, n, n) as `generate` writes them, or the
           published Pipe_{X,Y,Q}.npy, with all samples in one file; Q is ux, uy and p
    Item   coords (N, 2) per sample, no inputs, targets (N, 1) = ux, N = s², s = (n − 1)/stride + 1
    Rows of the grid run across the pipe from its lower wall; successive rows go from inlet to outlet.
    """
    test_last = cfg.test_split == "last200" and FILES.kind(cfg.root, cfg.source) == "published"
    stored = FILES.open(cfg.root, cfg.source, cfg.sizes, test_last=test_last)
    spec = pipe_layout(cfg, stored.sizes["n"]).spec
    return body_fitted_splits(stored, spec, partial(_read, stride=cfg.stride))


def pipe_layout(cfg: PipeConfig, stored: int = RESOLUTION) -> SampleLayout:
    """Layout of samples stored with `stored` points a side."""
    require_stride(cfg.stride, stored, stored - 1)
    side = (stored - 1) // cfg.stride + 1
    return SampleLayout(
        FieldSpec(coords=("x", "y"), outputs=("ux",), grid=(side, side), standardised=("coords", "outputs"))
    )


def _read(stored: StoredSet, split: str, stride: int = 1) -> tuple[Nodes, Values]:
    """Read nodes and ux.

    Raises unless X grows along the pipe, Y across it, and ux vanishes at the walls: the shape of a square
    grid does not reveal swapped axes.
    """
    nodes, speed = read_nodes(stored, split, channel=0, stride=stride)
    first = stored.samples[split].start or 0
    for axis, field in enumerate("XY"):
        grows = (nodes[..., axis].diff(dim=axis + 1) > 0).flatten(1).all(dim=1)
        if not grows.all():
            raise UserError(
                f"{stored.arrays[split, field].path}: {field} of sample {first + int((~grows).nonzero()[0])} "
                f"does not grow along axis {axis + 1}; expected (samples, along the pipe, across it)"
            )
    at_walls, inside = (part.abs().mean(dim=(1, 2)) for part in (speed[..., [0, -1]], speed[..., 1:-1]))
    slips = at_walls > MAX_WALL_SPEED * inside
    if slips.any():
        raise UserError(
            f"{stored.arrays[split, 'Q'].path}: ux of sample {first + int(slips.nonzero()[0])} is not zero "
            "at the walls of the pipe; expected (samples, channels, along the pipe, across it)"
        )
    return nodes, speed


def pipe_batch(resolution: int, device: torch.device) -> int:
    """Batch size; the solver needs about 60 kB per element, more on a GPU; 64 samples saturate a GPU."""
    return batch_that_fits(device, 80_000 * (resolution // 2) ** 2, most=64)


def pipe_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    grid = (resolution, resolution)
    return {"X": grid, "Y": grid, "Q": (3, *grid), "draws": ()}


generate_pipe = DataGenerator(
    name="pipe",
    equation="u . grad u - 0.005 Laplacian u + grad p = 0, div u = 0 in a pipe of length 10 and vertical "
    "width 1; u = (t (1 - t), 0) at the inlet, t from 0 to 1 upwards, u = 0 on the walls, 0.005 du/dn = p n "
    "at the outlet; the centre line starts at 0 and has 4 cubic Hermite pieces, heights ~ U[-1, 1], slopes ~ "
    "U[-2, 2] for each piece; X, Y = nodes, Q = ux, uy, p there",
    solver="Taylor-Hood elements (Q2-Q1), Newton's method until a step is below 1e-6 of the velocity, nested "
    "dissection; a pipe whose flow is not found is drawn again: draws is the draw that was kept, usually 1",
    units={"X": "dimensionless", "Y": "dimensionless", "Q": "dimensionless", "draws": "count"},
    shapes=pipe_shapes,
    make_batch=pipe_samples,
    batch_size=pipe_batch,
)
NEXT = {"test_split": "next200"}


DATASETS.register("pipe")(
    Benchmark(
        summary="Pipe: shape of a curved pipe → speed along it, 129×129 points that follow the pipe",
        config=PipeConfig,
        open=open_pipe,
        verify=partial(FILES.verify, inspect=_read),
        generate=generate_pipe,
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
                data=NEXT,
                training={"batch": 8, "clip": 0.1},
                summary="Transolver: MLPs of twice the width, batches of 8, gradients clipped at 0.1; tested "
                "on the next 200.",
            ),
            "transolver++": Variant(
                settings={"mlp_ratio": 2},
                data=NEXT,
                training={"batch": 8, "clip": 0.1},
                summary="Transolver++ at any points; sizes, training and split as Transolver here (our "
                "settings).",
            ),
            "lno": Variant(
                settings={"depth": 8, "trunk": "grid"},
                data=NEXT,
                training=LNO_TRAINING,
                summary="LNO: scores from positions in the unit grid, one-cycle over 20 % up, weight decay "
                "5e-5.",
            ),
            "lrsa": Variant(
                settings={"heads": 4, "slices": 32, "point_mlp": "conv"},
                data=NEXT,
                training={"batch": 8},
                summary="LRSA: 32 slices; convolutions, frequencies and training as Transolver's are our "
                "settings.",
            ),
            "flare": Variant(
                settings={"slices": 128},
                data=NEXT,
                training=FLARE_TRAINING,
                summary="FLARE: batches of 2, one-cycle over 10 % up, averaged weights (0.999), fp32; tested "
                "on the next 200.",
            ),
            "flare++": Variant(
                settings={"depth": 2},
                data=NEXT,
                training=FLARE_TRAINING,
                summary="FLARE++: two blocks of width 128, trained as FLARE; 64 slices are our setting.",
            ),
            "galerkin": library("Galerkin Transformer", data=NEXT, append="coords"),
            "gnot": library("GNOT", data=NEXT, append="coords"),
            "oformer": oformer("sizes published for Darcy", resolution=129, data=NEXT),
            "factformer": library("FactFormer", data=NEXT, append="coords"),
            "ono": library("ONO", data=NEXT, eigenfunctions=8, append="coords"),
            "fno": library("FNO", data=NEXT, width=128, append="coords"),
            "u-fno": library("U-FNO", data=NEXT, width=128, append="coords"),
            "geo-fno": geo_fno(data=NEXT),
            "f-fno": f_fno("our settings", data=NEXT, append="grid"),
            "f-fno-nsl": library(
                "Simplified F-FNO", model="f-fno", data=NEXT, **F_FNO_SIMPLIFIED, width=128, append="coords"
            ),
            "lsm": library("LSM", data=NEXT, width=32),
            "pod-gp": pod_gp(data=NEXT),
        },
        resolution=RESOLUTION,
        layout=pipe_layout,
        outputs=("Q",),
        channels=("Q",),
        published=FILES.published_names,
        small={"train": 300, "test": 60},
    )
)
