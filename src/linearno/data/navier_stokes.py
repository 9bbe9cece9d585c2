"""Navier–Stokes: from the first frames of a vorticity on the unit torus to the later ones."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_files import (
    Files,
    Stored,
    asked_of,
    open_stored,
    read_finite,
    require_shape,
    require_stride,
    samples_of,
    side_of,
    stored_problems,
    unit_square,
)
from linearno.data.availability import Source, require_samples, verify_tells
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits, Variant
from linearno.data.generation.generate import Recipe, batch_that_fits, generator
from linearno.data.sample import FieldSpec
from linearno.solvers.navier_stokes import FRAMES, SCHEMES, navier_stokes_samples, stored_points

STORED = 64  # points a side of the published file
PUBLISHED = "NavierStokes_V1e-5_N1200_T20.mat"
FILES = Files("ns", {"a": ("n", "n"), "u": ("n", "n", "frames")}, dict.fromkeys(("train", "test"), PUBLISHED))


class NavierStokesConfig(DataConfig):
    """Train on the first `train` samples and test on the last `test`, of one published file or two made here.

    A sample is `frames_in` frames to begin with and the `frames_out` that follow.
    """

    name: Literal["ns"] = "ns"
    root: Path = Path("data/ns")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    frames_in: PositiveInt = 10
    frames_out: PositiveInt = 10
    stride: PositiveInt = 1  # every point of 64 a side
    source: Source = "auto"

    @property
    def frames(self) -> int:
        return self.frames_in + self.frames_out


def open_ns(cfg: NavierStokesConfig) -> Splits:
    """Both splits in memory, every `stride`-th point of the stored grid.

    Disk   {split}_u.npy (S, n, n, T) as `generate` writes them, or `u` of the published MATLAB file
    Item   coords (N, 2), inputs (N, frames_in), targets (N, frames_out), N = (n/stride)²
    The channels are frames: `w1` at t = 1, … Points are in the order of `unit_square`; as in the published
    protocol their coordinates run from 0 to 1 with both ends, though the grid is that of a torus.
    """
    arrays, source = open_stored(FILES, cfg.root, cfg.source)
    stored = side_of(arrays)
    for array in arrays:
        require_shape(array, FILES, stored)
        require_samples(array.path, array.field, array.shape[0], asked_of(array, arrays, cfg.sizes))
    layout = ns_layout(cfg, stored)
    for array in arrays:
        _require_frames(array, cfg)
    train, test = (layout.filled(*_read(array, cfg)) for array in arrays if array.field == "u")
    return Splits(train, test, source)


def ns_layout(cfg: NavierStokesConfig, stored: int = STORED) -> SampleLayout:
    """Of samples stored at so many points a side."""
    require_stride(cfg.stride, stored, stored)
    side, names = stored // cfg.stride, tuple(f"w{t}" for t in range(1, cfg.frames + 1))
    spec = FieldSpec(
        coords=("x", "y"),
        inputs=names[: cfg.frames_in],
        outputs=names[cfg.frames_in :],
        grid=(side, side),
    )
    return SampleLayout(spec, unit_square(side))


def _require_frames(array: Stored, cfg: NavierStokesConfig) -> None:
    if array.field == "u" and array.shape[-1] < cfg.frames:
        raise UserError(
            f"{array.path} holds {array.shape[-1]} frames of {array.field}, but "
            f"frames_in={cfg.frames_in} and frames_out={cfg.frames_out} were asked for; lower one of them"
        )


def _read(array: Stored, cfg: NavierStokesConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The asked-for samples and points: first and later frames as (S, N, ·) float32."""
    every = slice(None, None, cfg.stride)
    index = (samples_of(array, cfg.sizes), every, every, slice(cfg.frames))
    frames = read_finite(array, index, how=verify_tells("ns", array.path.parent)).flatten(1, 2)
    return frames[..., : cfg.frames_in].contiguous(), frames[..., cfg.frames_in :].contiguous()


def make_ns(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device, *, scheme: str
) -> dict[str, ndarray]:
    return dict(zip(FILES.axes, navier_stokes_samples(rngs, resolution, device, scheme=scheme), strict=True))


def ns_batch(resolution: int, device: torch.device, *, scheme: str) -> int:
    """The solver holds about 80 arrays of float32 for each sample, 40 of them frames; more than 64 samples at
    once are no faster on the largest GPU, and progress would come in fewer steps."""
    return batch_that_fits(device, 80 * 4 * resolution**2, most=64)


def ns_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    points = stored_points(resolution)
    return {"a": (points, points), "u": (points, points, FRAMES)}


RECIPE = Recipe(
    name="ns",
    equation="w_t + v . grad w = 1e-5 Laplacian w + 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)) on the unit "
    "torus, curl v = w, div v = 0; a = w at t = 0 ~ N(0, 7^3 (-Laplacian + 49)^-2.5) with mean zero, "
    "u = w at t = 1, ..., 20",
    solver="pseudo-spectral in float32 with 2/3 de-aliasing, sub-sampled",
    units={"a": "dimensionless", "u": "dimensionless"},
    make=None,
    shapes=ns_shapes,
    make_batch=make_ns,
    batch_size=ns_batch,
    schemes={name: scheme.words for name, scheme in SCHEMES.items()},
)

generate_ns = generator(RECIPE)
verify_ns = partial(stored_problems, FILES, require=partial(_require_frames, cfg=NavierStokesConfig()))


DATASETS.register("ns")(
    Benchmark(
        summary="Navier–Stokes: vorticity at t = 1…10 → at t = 11…20 on a torus, 256×256 kept at 64×64",
        config=NavierStokesConfig,
        open=open_ns,
        verify=verify_ns,
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
        },
        resolution=256,
        layout=ns_layout,
        outputs=("u",),
        published=(PUBLISHED,),
        seconds=18.0,
        slower={"euler": 9.0},
        growth=2.8,
    )
)
