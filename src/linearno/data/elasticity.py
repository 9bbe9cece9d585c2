"""Elasticity benchmark: predict the stress around a void at scattered points."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_set import ArraySet
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
from linearno.data.generation.card import open_array
from linearno.data.generation.generate import DataGenerator
from linearno.data.sample import FieldSpec
from linearno.solvers.unit_cell import (
    EDGES,
    FOURIER_MODES,
    RADIUS_COUNT,
    elasticity_sample,
    gauss_point_count,
)

AXES = {"xy": ("points", "2"), "sigma": ("points",)}


def _open_published(path: Path, field: str, how: str) -> ndarray:
    """Array of a published file with the axis of the samples moved from last to first."""
    values = open_array(path, how=how)
    expected = (gauss_point_count(EDGES), *map(int, AXES[field][1:]))
    if values.shape[:-1] != expected or values.dtype.kind != "f":
        axes = ", ".join(map(str, (*expected, "samples")))
        raise UserError(
            f"{path}: {field} is {values.dtype} {values.shape}; expected real numbers ({axes}); {how}"
        )
    return np.moveaxis(values, -1, 0)


FILES = ArraySet(
    "elasticity",
    axes=AXES,
    published={"xy": "Random_UnitCell_XY_10.npy", "sigma": "Random_UnitCell_sigma_10.npy"},
    published_sizes={"samples": 2000},
    open_published=_open_published,
    folders=("", "Meshes", "elasticity/Meshes"),
)


class ElasticityConfig(DataConfig):
    """Train on the first `train` samples, test on the last `test`.

    Args:
        source: published files, generated set, or `auto`: the published files if they are present.
    """

    name: Literal["elasticity"] = "elasticity"
    root: Path = Path("data/elasticity")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    source: Source = "auto"


def open_elasticity(cfg: ElasticityConfig) -> Splits:
    """Load both splits.

    Disk   {split}_xy.npy (S, N, 2) and {split}_sigma.npy (S, N) as `generate` writes them, or the published
           files, where the samples are the last axis
    Item   coords (N, 2), no inputs, targets (N, 1), N = 972: every sample has its own points
    """
    stored = FILES.open(cfg.root, cfg.source, cfg.sizes, test_last=True)
    spec = elasticity_layout(cfg).spec

    def split(name: str) -> FieldData:
        return FieldData(spec, stored.read(name, "xy"), None, stored.read(name, "sigma").unsqueeze(-1))

    return Splits(split("train"), split("test"), stored.source)


def elasticity_layout(cfg: ElasticityConfig) -> SampleLayout:
    return SampleLayout(FieldSpec(coords=("x", "y"), outputs=("stress",), standardised=("outputs",)))


def make_elasticity(rng: np.random.Generator, resolution: int) -> dict[str, ndarray]:
    return elasticity_sample(rng, resolution)._asdict()


def elasticity_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    points = gauss_point_count(resolution)
    return {"xy": (points, 2), "sigma": (points,), "rr": (RADIUS_COUNT,), "theta": (2 * FOURIER_MODES,)}


generate_elasticity = DataGenerator(
    name="elasticity",
    equation="div sigma = 0 in the unit square without a void, plane stress, Poisson's ratio 0.5, clamped at "
    "the bottom, traction 100 upwards on top; around the centre a void of radius 0.2 + 0.2/(1 + exp s), "
    "s = sum over k = 1, ..., 5 of (a_k cos k phi + b_k sin k phi)/(sqrt(pi) (k^2 + 9)), a_k and b_k are "
    "N(0, 16^2); sigma = von Mises stress at the points xy, rr = radius at linspace(0, 2 pi, 42), "
    "theta = (a_1, b_1, a_2, ...)",
    solver="finite elements on nine-node quads, 10 on top, in a mesh that follows the void like "
    "an elastic body with Poisson's ratio 0; xy are the 3 x 3 Gauss points of each quad",
    units=dict.fromkeys(("xy", "sigma", "rr", "theta"), "dimensionless"),
    make=make_elasticity,
    shapes=elasticity_shapes,
)

DATASETS.register("elasticity")(
    Benchmark(
        summary="Elasticity: a square with a random void, pulled → von Mises stress at 972 points",
        config=ElasticityConfig,
        open=open_elasticity,
        verify=FILES.verify,
        generate=generate_elasticity,
        protocol={
            "batch": 1,
            "weight_decay": 1e-5,
            "schedule": "cosine",
            "schedule_every": "epoch",
            "precision": "bf16",
            "checkpoint_seconds": 30,
        },
        models={
            "linearno": Variant(
                summary="LinearNO: AdamW, cosine from 1e-3 by epochs, weight decay 1e-5, clipped at 1."
            ),
            "transolver": Variant(
                training={"clip": 0.1}, summary="Transolver: as LinearNO, gradients clipped at 0.1."
            ),
            "transolver++": Variant(
                training={"clip": 0.1},
                summary="Transolver++: sizes and training as Transolver here (our settings).",
            ),
            "lno": Variant(
                settings={"width": 192, "depth": 4, "mlp_layers": 3},
                training=LNO_TRAINING,
                summary="LNO: batches of 4, one-cycle over 20 % up, weight decay 5e-5; loss in physical "
                "units (published: of standardised fields).",
            ),
            "lrsa": Variant(
                summary="LRSA: 64 slices; frequencies and training as LinearNO's are our settings."
            ),
            "flare": Variant(
                training=FLARE_TRAINING,
                summary="FLARE: batches of 2, one-cycle over 10 % up, averaged weights (0.999), fp32.",
            ),
            "flare++": Variant(
                training=FLARE_TRAINING,
                summary="FLARE++: width 128, trained as FLARE; 64 slices are our setting.",
            ),
            "galerkin": library("Galerkin Transformer"),
            "gnot": library("GNOT"),
            "oformer": oformer("sizes published for Darcy", resolution=31),
            "ono": library("ONO", note=" with depth and eigenfunctions of its authors", eigenfunctions=8),
            "fno": library("FNO", width=32, latent=96),
            "u-fno": library("U-FNO", width=128, latent=96),
            "geo-fno": geo_fno("Geo-FNO without a shape code", halved=50),
            "f-fno": f_fno("our settings", modes=12, latent=40),
            "f-fno-nsl": library("Simplified F-FNO", model="f-fno", **F_FNO_SIMPLIFIED, width=128, latent=96),
            "lsm": library("LSM", width=32, latent=96),
            "pod-gp": pod_gp(),
        },
        resolution=EDGES,
        layout=elasticity_layout,
        outputs=("sigma",),
        published=FILES.published_names,
    )
)
