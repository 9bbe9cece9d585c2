"""Read inputs of predictions from `.npz` and `.mat` files of arrays, and write predictions to them."""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy import ndarray
from scipy.io import savemat
from torch import Tensor

from linearno.core.atomic_io import write_atomically
from linearno.core.errors import UserError, did_you_mean, require
from linearno.data.matlab import MatVariable, mat_shapes
from linearno.data.sample import FieldSpec

SUFFIXES = (".npz", ".mat")


@dataclass(frozen=True)
class InputArrays:
    """Inputs and coordinates for a model.

    Args:
        inputs: input channels (S, N, C), if there are any.
        coords: points (N, X) or (S, N, X), if the file has them.
        leading: shape of one field in the file: (), (S,), (rows, columns), (S, rows, columns) …
    """

    inputs: Tensor | None
    coords: Tensor | None
    leading: tuple[int, ...]


def read_input_arrays(
    path: Path, spec: FieldSpec, *, stride: int = 1, need_coords: bool = False
) -> InputArrays:
    """Read the fields that `spec` names from a file of arrays and check their shapes.

    Args:
        path: `.npz` or `.mat` file.
        spec: fields of the model.
        stride: read every `stride`-th point of a grid.
        need_coords: whether the file must contain `coords`.
    """
    arrays = read_arrays(path, [*spec.inputs, "coords"])
    return arrange_inputs(path, arrays, array_names(path), spec, stride=stride, need_coords=need_coords)


def arrange_inputs(
    path: Path | str,
    arrays: Mapping[str, ndarray],
    known: Sequence[str],
    spec: FieldSpec,
    *,
    stride: int = 1,
    need_coords: bool = False,
) -> InputArrays:
    """Arrange named float32 arrays as the inputs that `spec` names, and check their shapes.

    Args:
        path: source of the arrays, named in errors.
        arrays: arrays by name.
        known: names of all arrays of the source, for errors.
        spec: fields of the model.
        stride: use every `stride`-th point of a grid.
        need_coords: whether there must be `coords`.
    """
    missing = [name for name in spec.inputs if name not in arrays]
    if missing and len(missing) < len(spec.inputs):
        there = f"{len(spec.inputs) - len(missing)} of the {len(spec.inputs)} fields that the model takes"
        raise UserError(f"{path} holds {there}: {', '.join(missing)} not there; give all of them")
    if missing:
        raise UserError(f"{path} holds no {missing[0]!r}; {did_you_mean(missing[0], known)}")
    if (need_coords or not spec.inputs) and "coords" not in arrays:
        raise UserError(f"{path} holds no 'coords': the points ({', '.join(spec.coords)}) to answer at")
    fields: list[Tensor] = []
    leading: tuple[int, ...] | None = None
    for name in spec.inputs:
        values = _column_as_row(arrays[name], arrays["coords"]) if need_coords else arrays[name]
        field, shape = _field(path, name, values, spec, stride)
        if leading not in (None, shape):
            raise UserError(f"{path}: {name} has shape {shape}, the fields before it {leading}")
        fields, leading = [*fields, field], shape
    coords = _coords(path, arrays["coords"], spec) if "coords" in arrays else None
    inputs = torch.stack(fields, dim=-1) if fields else None
    if coords is not None and inputs is not None and coords.shape[-2] != inputs.shape[-2]:
        raise UserError(f"{path}: {coords.shape[-2]} points in coords, {inputs.shape[-2]} in the fields")
    if leading is None and coords is not None:
        leading = tuple(coords.shape[:-1])
    return InputArrays(inputs, coords, leading or ())


def _column_as_row(values: ndarray, coords: ndarray) -> ndarray:
    """Convert a column vector of point values, MATLAB's default, to one dimension."""
    points = coords.shape[-2]
    return values[:, 0] if points > 1 and values.shape == (points, 1) else values


def _field(
    path: Path | str, name: str, values: ndarray, spec: FieldSpec, stride: int
) -> tuple[Tensor, tuple[int, ...]]:
    """One field as (S, N), and its shape: strided to the grid of `spec`, or a list of points."""
    if not values.size:
        raise UserError(f"{path}: {name} is empty, its shape is {values.shape}; give one value or more")
    axes = len(spec.grid) if spec.grid else 1
    if spec.grid is not None and values.shape[-1:] != (prod(spec.grid),):
        for axis in range(-axes, 0) if values.ndim >= axes else ():
            values = values.take(range(0, values.shape[axis], stride), axis=axis)
        if values.shape[-axes:] != spec.grid:
            raise UserError(
                f"{path}: {name} has shape {values.shape} after a stride of {stride}, "
                f"the model answers on {spec.grid}; give that grid or use --stride"
            )
    else:
        axes = 1
    points = prod(values.shape[-axes:])
    flat = torch.from_numpy(values.reshape(-1, points))
    for sample, row in enumerate(flat):
        if not row.isfinite().all():
            raise UserError(f"{path}: {name} of sample {sample} holds NaN or infinite values")
    return flat, tuple(values.shape)


def _coords(path: Path | str, values: ndarray, spec: FieldSpec) -> Tensor:
    if values.ndim not in (2, 3) or values.shape[-1] != len(spec.coords):
        raise UserError(
            f"{path}: coords has shape {values.shape}, expected (points, {len(spec.coords)}) "
            f"or (samples, points, {len(spec.coords)})"
        )
    if not np.isfinite(values).all():
        raise UserError(f"{path}: coords holds NaN or infinite values")
    return torch.from_numpy(values)


def read_points(path: Path, spec: FieldSpec) -> Tensor:
    """Query points (N, X) from a .csv with a column per coordinate, or from `coords` of a file of arrays."""
    columns = ",".join(spec.coords)
    if path.suffix.lower() != ".csv":
        arrays = read_arrays(path, ["coords"])
        if "coords" not in arrays:
            raise UserError(f"{path} holds no 'coords': the points ({columns}) to answer at")
        points = _coords(path, arrays["coords"], spec)
        if points.dim() != 2:
            raise UserError(
                f"{path}: coords has shape {tuple(points.shape)}, expected (points, {len(spec.coords)})"
            )
        return points
    require(path, how=f"give a .csv with the columns {columns}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            values = [[float(row[name]) for name in spec.coords] for row in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError, csv.Error):
        raise UserError(f"{path}: expected the columns {columns} with a number in every row") from None
    if not values:
        raise UserError(f"{path} holds no points; give one or more")
    return _coords(path, np.array(values, dtype=np.float32), spec)


def read_arrays(path: Path, names: list[str]) -> dict[str, ndarray]:
    """Arrays of the file called `names`, as float32; missing ones are left out.

    A space in a name may be an underscore in the file, because MATLAB names have no spaces.
    """
    how = "give a .npz or .mat file"
    require(path, how=how)
    if path.suffix == ".mat":
        shapes = mat_shapes(path, how=how)
        existing = {name: _name_in_file(name, shapes) for name in names}
        return {
            name: MatVariable(path, stored, how=how)[(slice(None),) * len(shapes[stored])]
            for name, stored in existing.items()
            if stored in shapes
        }
    require_array_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: _name_in_file(name, file.files) for name in names}
            arrays = {name: file[key] for name, key in stored.items() if key in file}
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} is truncated or holds no plain arrays ({error})") from None
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UserError(f"{path}: {name} holds {array.dtype} numbers; expected real ones")
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}


def _name_in_file(name: str, found: Collection[str]) -> str:
    return name if name in found else name.replace(" ", "_")


def array_names(path: Path) -> list[str]:
    """Names of all arrays of a file."""
    if path.suffix == ".mat":
        return list(mat_shapes(path, how="give a .npz or .mat file"))
    with np.load(path, allow_pickle=False) as file:
        return list(file.files)


def require_array_file(path: Path) -> None:
    """Raise if the suffix is not that of a file of arrays."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: expected one of {', '.join(SUFFIXES)}, got {path.suffix or 'no ending'!r}")


def write_arrays(path: Path, arrays: dict[str, ndarray]) -> None:
    """Write named arrays to a `.npz` or `.mat` file, completely or not at all."""
    require_array_file(path)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            if path.suffix == ".mat":
                savemat(file, arrays)
            else:
                np.savez_compressed(file, allow_pickle=False, **arrays)

    write_atomically(path, write)
