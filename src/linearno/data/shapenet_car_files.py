"""Files of ShapeNet-Car in the published layout: folders param0 to param8 with one folder per car."""

import hashlib
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from linearno.core.atomic_io import writable_folder, write_atomically, write_text
from linearno.core.errors import UserError
from linearno.data.legacy_vtk import HEXAHEDRON, QUAD, Grid, read_grid, write_grid
from linearno.data.shapenet_car_points import CarFields, corner_sums, drag_scale, outward_quads
from linearno.solvers.surface_distance import area_vectors

FOLD_SIZES = (100, 99, 97, 100, 100, 96, 100, 98, 99)  # cars in param0, …, param8; param0 is the test split
SURFACE_FILE, VOLUME_FILE = "quadpress_smpl.vtk", "hexvelo_smpl.vtk"
FOLDERS = ("", "training_data", "mlcfd_data/training_data")  # of param0, relative to the root
HOW = "fetch the archive mlcfd_data.zip again, or generate a set"

log = logging.getLogger(__name__)


class Original(NamedTuple):
    """Cars of the published layout, by fold.

    Args:
        folder: folder of param0.
        cars: folders of the cars of each fold, sorted by name.
    """

    folder: Path
    cars: list[list[Path]]


def published_folder(root: Path) -> Path | None:
    """The folder that contains param0; None if there is none."""
    return next((root / name for name in FOLDERS if (root / name / "param0").is_dir()), None)


def find_cars(root: Path) -> Original:
    """Folders of all cars. Empty folders, of which the published set has four, are left out."""
    folder = published_folder(root)
    if folder is None:
        raise UserError(f"{root} has no folder param0; {HOW}")
    cars, empty = [], []
    for fold in range(len(FOLD_SIZES)):
        found = sorted(path for path in (folder / f"param{fold}").glob("*") if path.is_dir())
        empty += [path for path in found if not any(path.iterdir())]
        cars.append([path for path in found if path not in empty])
    if empty:
        log.info("%d empty folders are left out, the first is %s", len(empty), empty[0])
    if not cars[0]:
        raise UserError(f"{folder / 'param0'} has no cars; {HOW}")
    return Original(folder, cars)


def read_car(folder: Path) -> CarFields:
    """Fields of a car; surface points that no quadrilateral uses are left out."""
    surface, volume = read_grid(folder / SURFACE_FILE), read_grid(folder / VOLUME_FILE)
    pressure = _field(folder, SURFACE_FILE, surface, "press.npy", 1)
    velocity = _field(folder, VOLUME_FILE, volume, "velo.npy", 3)
    used, quads = np.unique(surface.cells, return_inverse=True)
    points = surface.points[used]
    quads = outward_quads(points.astype(float), quads.reshape(surface.cells.shape), str(folder))
    return CarFields(points, quads, pressure[used], volume.points, velocity)


def _field(folder: Path, file: str, grid: Grid, array: str, components: int) -> ndarray:
    """Point field of a file, or of the array next to it."""
    values = grid.values
    if values is None:
        path = folder / array
        if not path.exists() or not path.stat().st_size:
            raise UserError(f"{folder / file} has no point field, and {path} is missing or empty; {HOW}")
        try:
            values = np.load(path)
        except (ValueError, OSError):
            raise UserError(f"{path} is no .npy file; {HOW}") from None
    if values.size != components * len(grid.points):
        raise UserError(
            f"{folder}: {values.size} values of {array} at {len(grid.points)} points; expected "
            f"{components * len(grid.points)}; {HOW}"
        )
    values = values.reshape(-1, 3) if components == 3 else values.reshape(-1)
    if not np.isfinite(values).all():
        raise UserError(f"{folder}: {array} has NaN or infinite values; {HOW}")
    return values.astype(np.float32)


def car_name(split: str, index: int) -> str:
    return hashlib.sha256(f"{split} {index}".encode()).hexdigest()[:32]


def fold_of(split: str, index: int) -> int:
    """Folder of a generated car: the test split is param0, the training split fills the others in order."""
    if split == "test":
        return 0
    ends = np.cumsum(FOLD_SIZES[1:])
    return 1 + min(int(np.searchsorted(ends, index, side="right")), len(ends) - 1)


def write_car(folder: Path, car: CarFields, corners: int, unused: ndarray, hexahedra: ndarray) -> None:
    """Write the files of a car in the published layout.

    Args:
        folder: folder of the car.
        car: its fields.
        corners: number of points before the unused ones.
        unused: positions of points of the surface file that no quadrilateral uses.
        hexahedra: corners of the volume's cells.
    """
    writable_folder(folder)
    points = np.concatenate([car.points[:corners], unused, car.points[corners:]])
    zeros = np.zeros(len(unused), np.float32)
    pressure = np.concatenate([car.pressure[:corners], zeros, car.pressure[corners:]]).astype(np.float32)
    quads = np.where(car.quads >= corners, car.quads + len(unused), car.quads)
    write_grid(folder / SURFACE_FILE, Grid(points, quads, pressure), QUAD, "point_scalars")
    write_grid(folder / VOLUME_FILE, Grid(car.nodes, hexahedra, car.velocity), HEXAHEDRON, "point_vectors")
    write_atomically(folder / "press.npy", partial(_save, values=pressure))
    write_atomically(folder / "velo.npy", partial(_save, values=car.velocity.reshape(-1).astype(np.float32)))
    points64 = car.points.astype(float)
    area = area_vectors(points64, car.quads)[:, 2]
    drag = -(corner_sums(area, car.quads, len(points64)) / 4 * car.pressure).sum()
    write_text(folder / "cd.txt", f"{drag_scale(points64) * drag:.9g}\n")
    for name in ("param1.txt", "param2.txt"):
        write_text(folder / name, "")


def _save(path: Path, values: ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, values)


def sizes_of_folds(cars: list[list[Path]]) -> Iterator[str]:
    """Problems of the numbers of cars in the folders, one line each."""
    for fold, (found, expected) in enumerate(zip(cars, FOLD_SIZES, strict=True)):
        if len(found) != expected:
            yield f"param{fold} has {len(found)} cars; the published folder has {expected}"
