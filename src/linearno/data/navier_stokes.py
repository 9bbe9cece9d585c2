"""Navier–Stokes benchmark: predict later frames of the vorticity on the unit torus from the first ones."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_set import ArraySet, StoredSet, require_stride, unit_square
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
from linearno.solvers.navier_stokes import FRAMES, SCHEMES, navier_stokes_samples, stored_points

STORED = 64  # points a side of the published file
FILES = ArraySet(
    "ns",
    axes={"a": ("n", "n"), "u": ("n", "n", "frames")},
    published=dict.fromkeys(("train", "test"), "NavierStokes_V1e-5_N1200_T20.mat"),
)


class NavierStokesConfig(DataConfig):
    """Train on the first `train` samples, test on the last `test`.

    Args:
        frames_in: number of input frames.
        frames_out: number of target frames, after the input frames.
        stride: read every `stride`-th stored point; 1 reads all 64 a side.
        source: published file, generated set, or `auto`: the published file if it is present.
    """

    name: Literal["ns"] = "ns"
    root: Path = Path("data/ns")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    frames_in: PositiveInt = 10
    frames_out: PositiveInt = 10
    stride: PositiveInt = 1
    source: Source = "auto"

    @property
    def frames(self) -> int:
        return self.frames_in + self.frames_out


def open_ns(cfg: NavierStokesConfig) -> Splits:
    """Load both splits, every `stride`-th point of the stored grid.

    Disk   {split}_u.npy (S, n, n, T) as `generate` writes them, or `u` of the published MATLAB file
    Item   coords (N, 2), inputs (N, frames_in), targets (N, frames_out), N = (n/stride)²
    The channels are frames: `w1` at t = 1, … Points are in the order of `unit_square`; as in the published
    protocol, coordinates run from 0 to 1 inclusive although the domain is periodic.
    """
    stored = FILES.open(cfg.root, cfg.source, cfg.sizes, test_last=True)
    layout = ns_layout(cfg, stored.sizes["n"])
    step = slice(None, None, cfg.stride)

    def split(name: str) -> FieldData:
        _require_frames(stored, name, cfg)
        frames = stored.read(name, "u", step, step, slice(cfg.frames)).flatten(1, 2)
        return layout.fill(
            frames[..., : cfg.frames_in].contiguous(), frames[..., cfg.frames_in :].contiguous()
        )

    return Splits(split("train"), split("test"), stored.source)


def ns_layout(cfg: NavierStokesConfig, stored: int = STORED) -> SampleLayout:
    """Layout of samples stored with `stored` points a side."""
    require_stride(cfg.stride, stored, stored)
    side, names = stored // cfg.stride, tuple(f"w{t}" for t in range(1, cfg.frames + 1))
    spec = FieldSpec(
        coords=("x", "y"),
        inputs=names[: cfg.frames_in],
        outputs=names[cfg.frames_in :],
        grid=(side, side),
    )
    return SampleLayout(spec, unit_square(side))


def _require_frames(stored: StoredSet, split: str, cfg: NavierStokesConfig) -> None:
    array = stored.arrays[split, "u"]
    if array.shape[-1] < cfg.frames:
        raise UserError(
            f"{array.path} holds {array.shape[-1]} frames of u, fewer than frames_in={cfg.frames_in} and "
            f"frames_out={cfg.frames_out}; lower one of them"
        )


def make_ns(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str
) -> dict[str, ndarray]:
    return dict(zip(FILES.axes, navier_stokes_samples(rngs, resolution, device, scheme=scheme), strict=True))


def ns_batch(resolution: int, device: torch.device, *, scheme: str) -> int:
    """Batch size; the solver needs about 80 float32 arrays per sample, and 64 samples saturate an H200."""
    return batch_that_fits(device, 80 * 4 * resolution**2, most=64)


def ns_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    points = stored_points(resolution)
    return {"a": (points, points), "u": (points, points, FRAMES)}


generate_ns = DataGenerator(
    name="ns",
    equation="w_t + v . grad w = 1e-5 Laplacian w + 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)) on the unit "
    "torus, curl v = w, div v = 0; a = w at t = 0 ~ N(0, 7^3 (-Laplacian + 49)^-2.5) with mean zero, "
    "u = w at t = 1, ..., 20",
    solver="pseudo-spectral in float32 with 2/3 de-aliasing, sub-sampled",
    units={"a": "dimensionless", "u": "dimensionless"},
    shapes=ns_shapes,
    make_batch=make_ns,
    batch_size=ns_batch,
    schemes={name: scheme.description for name, scheme in SCHEMES.items()},
)


DATASETS.register("ns")(
    Benchmark(
        summary="Navier–Stokes: vorticity at t = 1…10 → at t = 11…20 on a torus, 256×256 kept at 64×64",
        config=NavierStokesConfig,
        open=open_ns,
        verify=partial(FILES.verify, inspect=partial(_require_frames, cfg=NavierStokesConfig())),
        generate=generate_ns,
        protocol={
            "batch": 2,
            "clip": None,
            "precision": "bf16",
            "checkpoint_seconds": 30,
            "eval_batch": 20,
        },
        task={"name": "rollout", "forcing": "teacher"},
        models={
            "linearno": Variant(
                settings={
                    "width": 256,
                    "slices": 32,
                    "mlp_ratio": 2,
                    "temperature": None,
                    "unified": {"ref": 10},
                },
                summary="LinearNO: AdamW, one-cycle to 1e-3, weight decay 1e-6, no clipping.",
            ),
            "transolver": Variant(
                settings={"width": 256, "slices": 32, "stem": "conv", "unified": {"ref": 8}},
                training={"weight_decay": 1e-5},
                summary="Transolver: distances to 8×8 references as position, weight decay 1e-5. On "
                "generated data its loss collapsed in bf16; training.clip=1 prevents that.",
            ),
            "transolver++": Variant(
                settings={"width": 256, "slices": 32},
                training={"weight_decay": 1e-5, "clip": 1.0},
                summary="Transolver++ at any points; sizes as Transolver here, clipped at 1 (our settings).",
            ),
            "lno": Variant(
                settings={"width": 256, "depth": 8},
                training=LNO_TRAINING,
                summary="LNO: batches of 4, one-cycle over 20 % up, weight decay 5e-5; true frames are fed "
                "back in training (our setting).",
            ),
            "lrsa": Variant(
                settings={"width": 256, "point_mlp": "conv"},
                training={"weight_decay": 1e-5, "clip": 1.0},
                summary="LRSA: 64 slices; convolutions, frequencies, clipping at 1 and training as "
                "Transolver's are our settings.",
            ),
            "flare": Variant(
                settings={"slices": 128},
                training=FLARE_TRAINING,
                summary="FLARE: 128 slices are our setting; trained as on the other benchmarks, fp32.",
            ),
            "flare++": Variant(
                training=FLARE_TRAINING,
                summary="FLARE++: width 128, trained as FLARE; 64 slices are our setting.",
            ),
            "galerkin": library("Galerkin Transformer", width=256, unified={"ref": 8}),
            "gnot": library("GNOT", depth=3),
            "oformer": oformer(
                "published sizes, all frames from one call",
                resolution=64,
                task={"name": "direct"},
                depth=5,
                heads=1,
                latent=192,
                march=10,
            ),
            "factformer": library("FactFormer", note=" with our sizes"),
            "ono": library("ONO", mlp_ratio=1, attention="efficient"),
            "fno": library("FNO", width=64),
            "u-fno": library("U-FNO", width=64, norm="instance"),
            "geo-fno": geo_fno(source="on a uniform grid (our settings)"),
            "f-fno": f_fno("our settings"),
            "f-fno-nsl": library("Simplified F-FNO", model="f-fno", **F_FNO_SIMPLIFIED, width=20),
            "lsm": library("LSM", width=64, norm="instance"),
            "pod-gp": pod_gp(),
        },
        resolution=256,
        layout=ns_layout,
        outputs=("u",),
        published=FILES.published_names,
        small={"train": 30, "test": 6},
    )
)
