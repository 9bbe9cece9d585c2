"""Elasticity: from the shape of a body with a void to the stress in it, at scattered points."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy import ndarray
from pydantic import PositiveInt

from linearno.core.errors import UserError
from linearno.data.array_files import Files, Stored, asked_of, open_stored, read_finite, samples_of
from linearno.data.availability import (
    Source,
    choose_source,
    complaints,
    how_to_fetch,
    require_samples,
    set_problems,
    verify_tells,
)
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits, Variant
from linearno.data.field_data import FieldData
from linearno.data.generation.card import open_array
from linearno.data.generation.generate import Recipe, generator
from linearno.data.sample import FieldSpec
from linearno.solvers.unit_cell import EDGES, RADII, WAVES, elasticity_sample, gauss_point_count

FILES = Files("elasticity", {"xy": ("points", "2"), "sigma": ("points",)}, {})
PUBLISHED = {"xy": "Random_UnitCell_XY_10.npy", "sigma": "Random_UnitCell_sigma_10.npy"}
SAMPLES = 2000  # of the published files
FOLDERS = ("", "Meshes", "elasticity/Meshes")  # where the published files may lie, seen from the root


class ElasticityConfig(DataConfig):
    """Train on the first `train` samples, test on the last `test`, of the published set or two made here."""

    name: Literal["elasticity"] = "elasticity"
    root: Path = Path("data/elasticity")
    train: PositiveInt = 1000
    test: PositiveInt = 200
    source: Source = "auto"


def open_elasticity(cfg: ElasticityConfig) -> Splits:
    """Both splits in memory.

    Disk   {split}_xy.npy (S, N, 2) and {split}_sigma.npy (S, N) as `generate` writes them, or the published
           files, where the samples are the last axis
    Item   coords (N, 2), no inputs, targets (N, 1), N = 972: every sample has its own points
    """
    arrays, source = _arrays(cfg.root, cfg.source)
    for array in arrays:
        _require_shape(array, arrays)
        require_samples(array.path, array.field, array.shape[0], asked_of(array, arrays, cfg.sizes))
    how = verify_tells("elasticity", cfg.root)
    read = {
        (array.split, array.field): read_finite(array, (samples_of(array, cfg.sizes),), how=how)
        for array in arrays
    }
    if {array.path.name for array in arrays} == set(PUBLISHED.values()):
        total = arrays[0].shape[0]
        source += f", tested on samples {total - cfg.test} to {total - 1}"
    spec = elasticity_layout(cfg).spec
    train, test = (
        FieldData(spec, read[split, "xy"], None, read[split, "sigma"].unsqueeze(-1))
        for split in ("train", "test")
    )
    return Splits(train, test, source)


def elasticity_layout(cfg: ElasticityConfig) -> SampleLayout:
    return SampleLayout(FieldSpec(coords=("x", "y"), outputs=("stress",), standardised=("outputs",)))


def _arrays(root: Path, source: Source) -> tuple[list[Stored], str]:
    folder = _folder(root)
    names = [str(Path(folder, name)) for name in PUBLISHED.values()]
    if choose_source(root, source, names) == "generated":
        return open_stored(FILES, root, "generated")
    return _published(root / folder, how=how_to_fetch("elasticity", root))


def _folder(root: Path) -> str:
    """The first folder with a published file."""
    there = (folder for folder in FOLDERS for name in PUBLISHED.values() if (root / folder / name).exists())
    return next(there, FOLDERS[0])


def _published(folder: Path, *, how: str) -> tuple[list[Stored], str]:
    arrays = []
    for split in ("train", "test"):
        for field, name in PUBLISHED.items():
            path, between = folder / name, FILES.axes[field][1:]
            values = open_array(path, how=how)
            expected = (gauss_point_count(EDGES), *map(int, between))
            if values.shape[:-1] != expected or values.dtype.kind != "f":
                held, words = f"{values.dtype} {values.shape}", ", ".join(map(str, (*expected, "samples")))
                raise UserError(f"{path}: {field} is {held}; expected real numbers ({words}); {how}")
            turned = np.moveaxis(values, -1, 0)
            arrays.append(Stored(split, field, path, turned.shape, turned.__getitem__))
    return arrays, f"published files {' and '.join(PUBLISHED.values())} in {folder}"


def _require_shape(array: Stored, arrays: list[Stored]) -> None:
    """As many points as the first array, and as many samples as the others of its split."""
    points = arrays[0].shape[1] if len(arrays[0].shape) == 3 else 0
    samples = next(other.shape[0] for other in arrays if other.split == array.split)
    expected = (samples, points, 2) if array.field == "xy" else (samples, points)
    if array.shape != expected:
        raise UserError(
            f"{array.path}: {array.field} has shape {array.shape}, its samples first; expected {expected}, "
            f"as of {arrays[0].path.name}"
        )


def make_elasticity(rng: np.random.Generator, resolution: int) -> dict[str, ndarray]:
    return elasticity_sample(rng, resolution)._asdict()


def elasticity_shapes(resolution: int) -> dict[str, tuple[int, ...]]:
    points = gauss_point_count(resolution)
    return {"xy": (points, 2), "sigma": (points,), "rr": (RADII,), "theta": (2 * WAVES,)}


RECIPE = Recipe(
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

generate_elasticity = generator(RECIPE)


def verify_elasticity(root: Path) -> list[str]:
    """What is wrong with the sets in `root`, a line each."""
    published = [root / _folder(root) / name for name in PUBLISHED.values()]
    return set_problems("elasticity", root, published, lambda: _problems(root))


def _problems(root: Path) -> Iterator[str]:
    """Of the published files."""
    try:
        arrays, _ = _arrays(root, "published")
    except UserError as error:
        yield str(error)
        return

    def check(array: Stored) -> None:
        _require_shape(array, arrays)
        if array.shape[0] != SAMPLES:
            held = f"{array.shape[0]:,} samples"
            raise UserError(f"{array.path}: {array.field} has {held}; the published file has {SAMPLES:,}")
        read_finite(array, (slice(None),), how="fetch the file again")

    yield from complaints(check, arrays[: len(PUBLISHED)])


DATASETS.register("elasticity")(
    Benchmark(
        summary="Elasticity: a square with a random void, pulled → von Mises stress at 972 points",
        config=ElasticityConfig,
        open=open_elasticity,
        verify=verify_elasticity,
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
        },
        resolution=EDGES,
        layout=elasticity_layout,
        outputs=("sigma",),
        published=tuple(PUBLISHED.values()),
        seconds=0.009,
        growth=2.8,
    )
)
