"""Airfoil benchmark: predict the Mach number around an airfoil on a body-fitted C-grid."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_set import ArraySet, StoredArray, StoredSet, require_stride
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
from linearno.solvers.airfoil import (
    CELLS_PER_UNIT,
    CONTROL_POINTS,
    OUTWARD_CELLS,
    airfoil_samples,
    grid_shape,
    require_resolution,
    wake_nodes,
)

RESOLUTION = 221  # nodes along airfoil and wake of the published files
CHANNELS = ("density", "ux", "uy", "p", "mach")
GRID = (f"{CELLS_PER_UNIT} n + 1", f"{OUTWARD_CELLS} n + 1")
PLOT_EXTENT = (-0.6, 1.6), (-0.7, 0.7)  # in chords; the grid extends over 80 × 80


def _require_c_grid(array: StoredArray) -> None:
    along = array.shape[-2]
    if along % CELLS_PER_UNIT != 1 or array.shape[-2:] != grid_shape(along):
        raise UserError(
            f"{array.path}: {array.field} has shape {array.shape}; expected "
            f"(samples, {GRID[0]}, {GRID[1]}) with the same n, 10 in the published files: 221 nodes along "
            "the airfoil, then 51 outwards"
        )


FILES = ArraySet(
    "airfoil",
    axes={"X": GRID, "Y": GRID, "Q": (str(len(CHANNELS)), *GRID)},
    published={field: f"NACA_Cylinder_{field}.npy" for field in "XYQ"},
    published_sizes={"samples": 2490, **dict(zip(GRID, grid_shape(RESOLUTION), strict=True))},
    check=_require_c_grid,
)


class AirfoilConfig(DataConfig):
    """Train on the first `train` samples; test on the next `test` samples of the published files, which
    contain all samples, or on the first `test` samples of the generated test split.

    Args:
        stride: read every `stride`-th node; 1 reads all 221 × 51.
        source: published files, generated set, or `auto`: the published files if they are present.
    """

    name: Literal["airfoil"] = "airfoil"
    root: Path = Path("data/airfoil")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    stride: PositiveInt = 1
    source: Source = "auto"


def open_airfoil(cfg: AirfoilConfig) -> Splits:
    """Load both splits, every `stride`-th node of the stored grid.

    Disk   {split}_{X,Y}.npy (S, 221, 51) and {split}_Q.npy (S, 5, 221, 51) as `generate` writes them, or the
           published NACA_Cylinder_{X,Y,Q}.npy, with all samples in one file
    Item   coords (N, 2) per sample, no inputs, targets (N, 1) = Mach number, N = 11,271
    Rows of the grid run outwards from airfoil and wake; successive rows go from the end of the wake on its
    upper side around the airfoil and back on the lower side. Nothing is standardised.
    """
    stored = FILES.open(cfg.root, cfg.source, cfg.sizes)
    spec = airfoil_layout(cfg, stored.sizes[GRID[0]]).spec
    return body_fitted_splits(stored, spec, partial(_read, stride=cfg.stride))


def airfoil_layout(cfg: AirfoilConfig, stored: int = RESOLUTION) -> SampleLayout:
    """Layout of samples stored with `stored` nodes along airfoil and wake."""
    require_stride(cfg.stride, stored, stored // CELLS_PER_UNIT)
    grid = tuple((size - 1) // cfg.stride + 1 for size in grid_shape(stored))
    return SampleLayout(FieldSpec(coords=("x", "y"), outputs=("mach",), grid=grid, plot_extent=PLOT_EXTENT))


def _read(stored: StoredSet, split: str, stride: int = 1) -> tuple[Nodes, Values]:
    """Read nodes and Mach numbers; raise unless the wake sides coincide and the nose points to the left."""
    nodes, mach = read_nodes(stored, split, channel=CHANNELS.index("mach"), stride=stride)
    paired = wake_nodes(stored.sizes[GRID[0]]) // stride
    gap = nodes[:, :paired, 0] != nodes[:, nodes.shape[1] - paired :, 0].flip(1)
    below, nose = nodes[:, 0, -1, 1] <= nodes[:, -1, -1, 1], nodes[:, nodes.shape[1] // 2, :, 0]
    wrong = gap.flatten(1).any(dim=1) | below | (nose[:, 0] <= nose[:, -1])
    if wrong.any():
        sample = (stored.samples[split].start or 0) + int(wrong.nonzero()[0])
        raise UserError(
            f"{stored.arrays[split, 'X'].path}: the nodes of sample {sample} do not run around an airfoil: "
            "expected (samples, from the end of the wake above it and back below, outwards)"
        )
    return nodes, mach


def make_airfoil(
    rngs: Sequence[np.random.Generator], resolution: int, device: torch.device
) -> dict[str, ndarray]:
    concurrent = None if device.type == "cpu" else concurrent_airfoils(resolution, device)
    return airfoil_samples(rngs, resolution, device, concurrent=concurrent)


def concurrent_airfoils(resolution: int, device: torch.device) -> int:
    """Number of flows in memory: the solver needs 1.5 dense float32 matrices per pair of grid lines."""
    lines, nodes = grid_shape(resolution)
    return batch_that_fits(device, 6 * (lines // 2 + 1) * (8 * nodes) ** 2, most=512)


def airfoil_batch(resolution: int, device: torch.device) -> int:
    """Batch size; on a GPU several times the concurrent flows, because a few flows take long."""
    return concurrent_airfoils(resolution, device) * (1 if device.type == "cpu" else 4)


def airfoil_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    require_resolution(resolution)
    grid = grid_shape(resolution)
    return {
        "X": grid,
        "Y": grid,
        "Q": (len(CHANNELS), *grid),
        "theta": (CONTROL_POINTS,),
        "res": (),
        "draws": (),
    }


generate_airfoil = DataGenerator(
    name="airfoil",
    equation="steady Euler equations of a gas, gamma = 1.4; far away density 1, pressure 1, Mach number 0.8 "
    "along x; no flow through the airfoil, NACA 0012 lifted by a box around it, cubic along x between 4 "
    "controls from -0.25 to 1.25, linear across from -0.1 to 0.1, with heights theta, the first 0, the "
    "others ~ U[-0.05, 0.05]; X, Y = nodes of a C-grid, Q = density, ux, uy, pressure, Mach number there",
    solver="finite volumes around the nodes, Roe's flux, van Albada's limiter along grid lines; implicit "
    "march to a residual res of 1e-6 of the first; an airfoil whose flow does not become steady is drawn "
    "again: draws is the draw that was kept, usually 1",
    units=dict.fromkeys(("X", "Y", "Q", "theta", "res"), "dimensionless") | {"draws": "count"},
    shapes=airfoil_shapes,
    make_batch=make_airfoil,
    batch_size=airfoil_batch,
)

DATASETS.register("airfoil")(
    Benchmark(
        summary="Airfoil: shape of an airfoil at Mach 0.8 → Mach number, 221×51 points that follow it",
        config=AirfoilConfig,
        open=open_airfoil,
        verify=partial(FILES.verify, inspect=_read),
        generate=generate_airfoil,
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
            "transolver++": Variant(
                training={"clip": 0.1},
                summary="Transolver++ at any points; sizes and training as Transolver here (our settings).",
            ),
            "lno": Variant(
                settings={"depth": 8, "trunk": "grid"},
                training=LNO_TRAINING,
                summary="LNO: scores from positions in the unit grid, one-cycle over 20 % up, weight decay "
                "5e-5.",
            ),
            "lrsa": Variant(
                settings={"heads": 4, "point_mlp": "conv"},
                summary="LRSA: 64 slices; convolutions, frequencies and training as LinearNO's are our "
                "settings.",
            ),
            "flare": Variant(
                settings={"slices": 256},
                training=FLARE_TRAINING,
                summary="FLARE: batches of 2, one-cycle over 10 % up, averaged weights (0.999), fp32.",
            ),
            "flare++": Variant(
                training=FLARE_TRAINING,
                summary="FLARE++: width 128, trained as FLARE; 64 slices are our setting.",
            ),
            "galerkin": library("Galerkin Transformer", mlp_ratio=1),
            "gnot": library("GNOT", mlp_ratio=1),
            "oformer": oformer("sizes published for Darcy", resolution=106),
            "factformer": library("FactFormer", width=32, mlp_ratio=1),
            "ono": library(
                "ONO", note=" with depth and eigenfunctions of its authors", depth=6, eigenfunctions=8
            ),
            "fno": library("FNO", width=32),
            "u-fno": library("U-FNO", width=32),
            "geo-fno": geo_fno(modes=(24, 12)),
            "f-fno": f_fno("published settings", modes=(32, 16), append="grid"),
            "f-fno-nsl": library("Simplified F-FNO", model="f-fno", **F_FNO_SIMPLIFIED, width=32),
            "lsm": library("LSM", width=32),
            "pod-gp": pod_gp(),
        },
        resolution=RESOLUTION,
        layout=airfoil_layout,
        outputs=("Q",),
        channels=("Q",),
        published=FILES.published_names,
        small={"train": 30, "test": 6},
    )
)
