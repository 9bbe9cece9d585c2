"""ShapeNet-Car benchmark: predict the velocity around cars and the pressure on them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.device import available_cores
from linearno.core.errors import UserError
from linearno.data.availability import Source, describe_generated, how_to_generate
from linearno.data.benchmark import DATASETS, Benchmark, DataConfig, SampleLayout, Splits
from linearno.data.field_data import FieldData
from linearno.data.generation.card import card_problems, read_card_for
from linearno.data.legacy_vtk import read_grid
from linearno.data.sample import FieldSpec
from linearno.data.scaler import EPS
from linearno.data.shapenet_car_files import (
    SURFACE_FILE,
    VOLUME_FILE,
    find_cars,
    published_folder,
    read_car,
    sizes_of_folds,
)
from linearno.data.shapenet_car_generation import (
    RESOLUTION,
    export_cars,
    generate_shapenet_car,
    stored_cars,
)
from linearno.data.shapenet_car_metrics import (
    drag_error,
    drag_error_shifted,
    drag_spearman,
    published_loss,
    surface,
    volume,
)
from linearno.data.shapenet_car_models import MODELS, PROTOCOL, VARIANTS
from linearno.data.shapenet_car_points import CarCells, CarFields, CarRows, car_rows, cells_of_rows
from linearno.solvers.car_mesh import volume_mesh

Statistics = Literal["published", "separate"]
NAME = "shapenet-car"
AUX = ("pressure_weight", "friction_weight", "wall_neighbour", "loss_scale")


class ShapeNetCarConfig(DataConfig):
    """Train on the first `train` cars of param1 to param8; test on the first `test` cars of param0.

    Args:
        statistics: `published`: one mean and deviation of each channel over all rows, so that the zero
            pressure off the surface counts. `separate`: of the pressure on the surface and of the velocity
            off it; velocity on the surface and pressure off it are then no targets.
        source: published files, generated set, or `auto`: the published files if they are present.
    """

    name: Literal["shapenet-car"] = "shapenet-car"
    root: Path = Path("data/shapenet-car")
    train: PositiveInt = 789
    test: PositiveInt = 100
    statistics: Statistics = "published"
    source: Source = "auto"


def open_shapenet_car(cfg: ShapeNetCarConfig) -> Splits:
    """Load both splits.

    Disk   {split}_{points,pressure,nodes,velocity}.npy as `generate` writes them, or the published folders
           param0 to param8 with one folder per car: quadpress_smpl.vtk, hexvelo_smpl.vtk
    Item   coords (N, 3), inputs (N, 4): distance to the surface and normal, targets (N, 4): velocity and
           pressure; N = 32,186: 28,600 nodes off the surface, then 3,586 points on it
    """
    published = _is_published(cfg.root, cfg.source)
    readers, origin = (_published if published else _generated)(cfg)
    spec = shapenet_car_layout(cfg).spec
    rows = {split: _read_all(reader, cfg.sizes[split]) for split, reader in readers.items()}
    _require_equal([*rows["train"], *rows["test"]])
    scale = _loss_scale(rows["train"], cfg.statistics)
    parts = {split: _field_data(spec, cars, scale, cfg.statistics) for split, cars in rows.items()}
    return Splits(parts["train"], parts["test"], origin)


def shapenet_car_layout(cfg: ShapeNetCarConfig) -> SampleLayout:
    outputs = ("vx", "vy", "vz", "pressure")
    return SampleLayout(
        FieldSpec(
            coords=("x", "y", "z"),
            inputs=("distance", "nx", "ny", "nz"),
            outputs=outputs,
            units=dict.fromkeys(("x", "y", "z", "distance"), "m")
            | dict.fromkeys(outputs[:3], "m/s")
            | {"pressure": "Pa"},
            standardised=("coords", "inputs", "outputs"),
            vectors={"velocity": outputs[:3], "normal": ("nx", "ny", "nz")},
            masked_outputs=outputs if cfg.statistics == "separate" else (),
            aux=dict.fromkeys(AUX, "sample"),
        )
    )


Reader = Callable[[int], CarRows]


def _is_published(root: Path, source: Source) -> bool:
    return source == "published" or (source == "auto" and published_folder(root) is not None)


def _published(cfg: ShapeNetCarConfig) -> tuple[dict[str, Reader], str]:
    original = find_cars(cfg.root)
    folders = {"train": [car for fold in original.cars[1:] for car in fold], "test": original.cars[0]}
    for split, found in folders.items():
        if len(found) < cfg.sizes[split]:
            raise UserError(
                f"{original.folder} has {len(found)} cars for data.{split}={cfg.sizes[split]}; "
                f"lower data.{split}, or fetch the missing folders"
            )

    def reader(cars: Sequence[Path]) -> Reader:
        return lambda index: car_rows(read_car(cars[index]))

    origin = f"published files in {original.folder}"
    return {split: reader(cars) for split, cars in folders.items()}, origin


def _generated(cfg: ShapeNetCarConfig) -> tuple[dict[str, Reader], str]:
    how = how_to_generate(NAME, cfg.root)
    card = read_card_for(cfg.root, NAME, how=how)
    readers: dict[str, Reader] = {}
    for split, count in cfg.sizes.items():
        if card.sizes.get(split, 0) < count:
            raise UserError(
                f"{cfg.root} has {card.sizes.get(split, 0)} cars for data.{split}={count}; "
                f"lower data.{split} or generate more"
            )
        readers[split] = _rows_of(stored_cars(cfg.root, split, how))
    return readers, describe_generated(card, cfg.root)


def _rows_of(read: Callable[[int], CarFields]) -> Reader:
    return lambda index: car_rows(read(index))


def _read_all(reader: Reader, count: int) -> list[CarRows]:
    with ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(reader, range(count)))


def _require_equal(cars: Sequence[CarRows]) -> None:
    """Raise unless all cars have the same numbers of rows and of surface points."""
    expected = len(cars[0].coords), cars[0].surface
    for index, car in enumerate(cars):
        if (found := (len(car.coords), car.surface)) != expected:
            raise UserError(
                f"car {index} has {found[0]} rows with {found[1]} surface points, the first car has "
                f"{expected[0]} with {expected[1]}; expected cars on one mesh"
            )


def _loss_scale(cars: Sequence[CarRows], statistics: Statistics) -> Tensor:
    """Deviation of each channel over the training cars.

    Separate statistics: of the velocity off the surface, reduced by √share because the loss is a mean over
    all rows, and of the pressure on the surface.
    """
    every = torch.stack([torch.from_numpy(car.targets) for car in cars]).double()
    if statistics == "published":
        return (every.flatten(0, 1).std(dim=0) + EPS).float()
    off = every.shape[1] - cars[0].surface
    velocity = every[:, :off, :3].flatten(0, 1).std(dim=0) * (off / every.shape[1]) ** 0.5
    return (torch.cat([velocity, every[:, off:, 3:].flatten(0, 1).std(dim=0)]) + EPS).float()


def _field_data(spec: FieldSpec, cars: Sequence[CarRows], scale: Tensor, statistics: Statistics) -> FieldData:
    def stack(name: str) -> Tensor:
        return torch.stack([torch.from_numpy(getattr(car, name)) for car in cars])

    coords, targets = stack("coords"), stack("targets")
    marks = torch.zeros(coords.shape[:2], dtype=torch.bool)
    marks[:, -cars[0].surface :] = True
    if statistics == "separate":
        targets[..., 3].masked_fill_(~marks, torch.nan)
        targets[..., :3].masked_fill_(marks[..., None], torch.nan)
    aux = {
        "pressure_weight": stack("pressure_weight"),
        "friction_weight": stack("friction_weight"),
        "wall_neighbour": stack("neighbour"),
        "loss_scale": scale.expand(len(cars), -1).contiguous(),
    }
    return FieldData(spec, coords, stack("inputs"), targets, surface=marks, aux=aux)


def car_cells(cfg: ShapeNetCarConfig) -> CarCells:
    """Mesh of the rows of all cars, from the first test car."""
    if _is_published(cfg.root, cfg.source):
        folder = find_cars(cfg.root).cars[0][0]
        return cells_of_rows(read_car(folder), read_grid(folder / VOLUME_FILE).cells)
    read = stored_cars(cfg.root, "test", how_to_generate(NAME, cfg.root))
    return cells_of_rows(read(0), volume_mesh().hexahedra)


def verify_shapenet_car(root: Path) -> list[str]:
    """Problems of the published folders or the generated set in `root`, one line each."""
    if published_folder(root) is None:
        return card_problems(root, NAME, how=how_to_generate(NAME, root))
    original = find_cars(root)
    lines = list(sizes_of_folds(original.cars))
    for folder in [car for fold in original.cars for car in fold]:
        try:
            read_car(folder)
        except UserError as error:
            lines.append(str(error))
    return lines


DATASETS.register(NAME)(
    Benchmark(
        summary="ShapeNet-Car: a car body → pressure on it and velocity around it at 32,186 points",
        config=ShapeNetCarConfig,
        open=open_shapenet_car,
        verify=verify_shapenet_car,
        generate=generate_shapenet_car,
        export=export_cars,
        protocol=PROTOCOL,
        models=MODELS,
        variants=VARIANTS,
        loss=published_loss,
        metrics={
            "surface": surface,
            "volume": volume,
            "drag_error": drag_error,
            "drag_error_shifted": drag_error_shifted,
        },
        summaries={"drag_spearman": drag_spearman},
        resolution=RESOLUTION,
        small={"train": 24, "test": 6},
        published=(SURFACE_FILE, VOLUME_FILE),
        outputs=("pressure", "velocity"),
        layout=shapenet_car_layout,
    )
)
