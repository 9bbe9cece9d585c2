"""Darcy benchmark: predict the pressure from the permeability on a square grid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt

from linearno.data.array_set import ArraySet, require_stride, unit_square
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
from linearno.solvers.darcy import darcy_samples, require_resolution

RESOLUTION = 421  # points a side of the published files
FIELDS = ("coeff", "sol")
FILES = ArraySet(
    "darcy",
    axes=dict.fromkeys(FIELDS, ("n", "n")),
    published={
        "train": "piececonst_r421_N1024_smooth1.mat",
        "test": "piececonst_r421_N1024_smooth2.mat",
    },
)


class DarcyConfig(DataConfig):
    """Train on the first `train` samples of one file, test on the first `test` of another.

    Args:
        stride: read every `stride`-th stored point; 5 reads 85 of 421 points a side.
        source: published files, generated set, or `auto`: the published files if they are present.
    """

    name: Literal["darcy"] = "darcy"
    root: Path = Path("data/darcy")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    stride: PositiveInt = 5
    source: Source = "auto"


def open_darcy(cfg: DarcyConfig) -> Splits:
    """Load both splits, every `stride`-th point of the stored grid.

    Disk   {split}_{coeff,sol}.npy (S, n, n) as `generate` writes them, or the published MATLAB files
    Item   coords (N, 2), inputs (N, 1), targets (N, 1), N = s², s = (n − 1)/stride + 1
    Points are those of the stored grid in the order of `unit_square`, as in the published protocol.
    """
    stored = FILES.open(cfg.root, cfg.source, cfg.sizes)
    layout = darcy_layout(cfg, stored.sizes["n"])
    step = slice(None, None, cfg.stride)

    def split(name: str) -> FieldData:
        inputs, targets = (stored.read(name, field, step, step).flatten(1) for field in FIELDS)
        return layout.fill(inputs[..., None], targets[..., None])

    return Splits(split("train"), split("test"), stored.source)


def darcy_layout(cfg: DarcyConfig, stored: int = RESOLUTION) -> SampleLayout:
    """Layout of samples stored with `stored` points a side."""
    require_stride(cfg.stride, stored, stored - 1)
    side = (stored - 1) // cfg.stride + 1
    spec = FieldSpec(
        coords=("x", "y"),
        inputs=("coeff",),
        outputs=("sol",),
        grid=(side, side),
        standardised=("inputs", "outputs"),
    )
    return SampleLayout(spec, unit_square(side))


def make_darcy(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> dict[str, ndarray]:
    return dict(zip(FIELDS, darcy_samples(rngs, resolution, device), strict=True))


def darcy_batch(resolution: int, device: torch.device) -> int:
    """Batch size; the solver needs about 30 float64 arrays per sample, including its transforms."""
    return batch_that_fits(device, 30 * 8 * resolution**2)


def darcy_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    return dict.fromkeys(FIELDS, (resolution, resolution))


generate_darcy = DataGenerator(
    name="darcy",
    equation="-div(a grad u) = 1 on (0,1)^2, u = 0 on the border; a = 12 where g >= 0 and 3 elsewhere, "
    "g ~ N(0, (-Laplacian + 9)^-2) with zero normal derivative; coeff = a and sol = u at cell centres",
    solver="five-point scheme with mean face coefficients on the node grid, cubic splines between cell "
    "centres and nodes, conjugate gradients preconditioned by the Laplacian to a relative residual of 1e-10",
    units={"coeff": "dimensionless", "sol": "dimensionless"},
    shapes=darcy_shapes,
    make_batch=make_darcy,
    batch_size=darcy_batch,
)


DATASETS.register("darcy")(
    Benchmark(
        summary="Darcy flow: permeability → pressure on the unit square, 421×421 read at every 5th point",
        config=DarcyConfig,
        open=open_darcy,
        verify=FILES.verify,
        generate=generate_darcy,
        protocol={
            "precision": "bf16",  # the fastest precision with the accuracy of tf32
            "checkpoint_seconds": 30,
            "loss": {"gradient_weight": 0.1},  # relative L2 + 0.1 · relative L2 of the gradient
        },
        models={
            "linearno": Variant(
                settings={"stem": "conv", "merge_layers": 2},
                summary="LinearNO: AdamW, one-cycle to 1e-3, weight decay 1e-6, gradients clipped at 1.",
            ),
            "transolver": Variant(
                settings={"stem": "conv", "unified": {"ref": 8}},
                training={"weight_decay": 1e-5, "clip": 0.1},
                summary="Transolver: distances to 8×8 references as position, weight decay 1e-5, gradients "
                "clipped at 0.1.",
            ),
            "transolver++": Variant(
                training={"weight_decay": 1e-5, "clip": 0.1},
                summary="Transolver++ at any points; sizes and training as Transolver here (our settings).",
            ),
            "lno": Variant(
                settings={"depth": 4},
                training=LNO_TRAINING,
                summary="LNO: one-cycle over 20 % up, weight decay 5e-5, no term of the gradient; loss in "
                "physical units (published: of standardised fields).",
            ),
            "lrsa": Variant(
                settings={"point_mlp": "conv"},
                training={"weight_decay": 1e-5},
                summary="LRSA: 64 slices; convolutions, frequencies and training as Transolver's are our "
                "settings.",
            ),
            "flare": Variant(
                settings={"heads": 16, "slices": 256},
                training={**FLARE_TRAINING, "loss": {"gradient_weight": 0.1, "reduction": "mean"}},
                summary="FLARE: batches of 2, one-cycle over 10 % up, averaged weights (0.999), fp32.",
            ),
            "flare++": Variant(
                training={**FLARE_TRAINING, "loss": {"gradient_weight": 0.1, "reduction": "mean"}},
                summary="FLARE++: width 128, trained as FLARE; 64 slices are our setting.",
            ),
            "galerkin": library("Galerkin Transformer", unified={"ref": 8}),
            "gnot": library("GNOT", depth=3),
            "oformer": oformer("published sizes", resolution=85),
            "factformer": library("FactFormer", unified={"ref": 8}),
            "ono": library("ONO", depth=10, eigenfunctions=32),
            "fno": library("FNO", width=128, unified={"ref": 8}),
            "u-fno": library("U-FNO", width=32, unified={"ref": 8}),
            "geo-fno": geo_fno(source="on a uniform grid (our settings)"),
            "f-fno": f_fno("our settings"),
            "f-fno-nsl": library(
                "Simplified F-FNO", model="f-fno", **F_FNO_SIMPLIFIED, width=128, unified={"ref": 8}
            ),
            "lsm": library("LSM", width=64),
            "pod-gp": pod_gp(),
        },
        resolution=RESOLUTION,
        layout=darcy_layout,
        outputs=("sol",),
        published=FILES.published_names,
    )
)
