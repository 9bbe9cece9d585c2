"""Read the inputs and targets of a case from its files.

Axes: K points or cells of a case, Q query points, X coordinates, C channels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray

from linearno.core.errors import UserError, did_you_mean
from linearno.data.sample import Batch
from linearno.meshes.config import MeshFields, Quantity
from linearno.meshes.expressions import evaluate
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import MeshRequest, MeshValues
from linearno.meshes.reader.features import Position
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader.quantities import Functional
from linearno.meshes.reader_process import Reader
from linearno.meshes.tables import Table


class Case(NamedTuple):
    """One case in physical units.

    Args:
        file: files of the case.
        coords: coordinates of points or cell centres (K, X).
        inputs: channels (K, C_in).
        targets: channels (K, C); NaN for targets missing in the file.
        surface: mask (K,) of the points on the surface, if the model has one.
        found: targets that exist in the file.
        patches: names of the patches of the boundary.
        topology: hash of the cells.
        weights: weights (K,) of the points for each integral quantity.
    """

    file: CaseFile
    coords: Float[ndarray, "K X"]
    inputs: Float[ndarray, "K C_in"]
    targets: Float[ndarray, "K C"]
    surface: Bool[ndarray, "K"] | None
    found: tuple[str, ...]
    patches: tuple[str, ...] = ()
    topology: str = ""
    weights: Mapping[str, ndarray] = {}

    def sample(self) -> Batch:
        """The case as a single sample."""
        inputs, targets = torch.from_numpy(self.inputs), torch.from_numpy(self.targets)
        return Batch(torch.from_numpy(self.coords), inputs if inputs.shape[1] else None, targets)


@dataclass(frozen=True)
class CaseReader:
    """Reads cases as channels of a model.

    Args:
        config: inputs and targets.
        table: numbers of the cases, from a table.
        given: numbers of the case with precedence over table and file.
    """

    config: MeshFields
    table: Table = field(default_factory=lambda: Table({}, {}))
    given: Mapping[str, float] = field(default_factory=dict)

    def read(self, reader: Reader, file: CaseFile, *, truth: bool = True) -> Case:
        """Read a case. With `truth`, missing targets are an error."""
        config = self.config
        values = reader.call(commands.read, file, self._request())
        count, coords = len(values.points), values.points[:, self._axes()].astype(np.float32)
        found = tuple(name for name in config.targets if truth or name in values.fields)
        with _errors_of(file):
            self._require_axes_and_units(values)
            if truth:
                self._require_patches(values)
            inputs = [*self._inputs(values), *self._numbers(file, values, count)]
            targets = [
                self._target(values, name)
                if name in found
                else np.full((count, len(config.channels(name))), np.nan)
                for name in config.targets
            ]
        return Case(
            file,
            coords,
            _columns(inputs, count),
            _columns(targets, count),
            values.surface,
            found,
            tuple(values.patches),
            values.topology,
            values.weights,
        )

    def inputs_at(
        self, reader: Reader, file: CaseFile, points: Float[ndarray, "Q 3"], case: Case
    ) -> Float[ndarray, "Q C_in"]:
        """Inputs of a case at query points; fields are interpolated in the cells.

        Args:
            reader: reader process.
            file: files of the case.
            points: query points.
            case: result of `read` for the same file.
        """
        request = replace(self._request(), fields=self.config.inputs)
        values = reader.call(commands.probe, file, request, points)
        with _errors_of(file):
            if values.inside is not None and (outside := int((~values.inside).sum())):
                names = ", ".join(self.config.inputs)
                raise UserError(
                    f"{outside} of {len(points)} points lie outside the mesh, where {names} is not known"
                )
            varying = _columns(self._inputs(values), len(points))
        numbers = np.tile(case.inputs[:1, varying.shape[1] :], (len(points), 1))
        return np.concatenate([varying, numbers], axis=1)

    def _request(self) -> MeshRequest:
        config = self.config
        return MeshRequest(
            location=config.location,
            fields=(*config.inputs, *config.targets),
            numbers=[
                name for name in config.globals if name not in self.given and name not in config.expressions
            ],
            derived=config.derived,
            surface=config.surface or "own",
            mark_surface=config.surface is not None and config.location == "points",
            tolerate=config.tolerate,
            plane=len(config.coords) == 2,
            quantities={name: self._functional(one) for name, one in config.quantities.items()},
            position=None if config.position is None else Position(**config.position.model_dump()),
        )

    def _functional(self, quantity: Quantity) -> Functional:
        direction, point = self._in_space(quantity.direction), self._in_space(quantity.point)
        return Functional(quantity.kind, quantity.patch, direction, point)

    def _in_space(self, numbers: Sequence[float]) -> tuple[float, ...]:
        if len(numbers) == len(AXES) or not numbers:
            return tuple(numbers)
        given: dict[str, float] = dict(zip(self.config.coords, numbers, strict=True))
        return tuple(given.get(axis, 0.0) for axis in AXES)

    def _axes(self) -> list[int]:
        return [AXES.index(axis) for axis in self.config.coords]

    def _require_axes_and_units(self, values: MeshValues) -> None:
        coords, extent = self.config.coords, ", ".join(values.axes) or "no axis"
        expected = None
        if extra := [axis for axis in values.axes if axis not in coords]:
            expected = f"a mesh in a plane, without {extra[0]}"
        elif len(values.axes) < len(coords):
            expected = "a mesh with as many dimensions"
        if expected:
            raise UserError(
                f"it has an extent along {extent}, the model has the coordinates {', '.join(coords)}: "
                f"expected {expected}"
            )
        units = {**self.table.units, **values.units}
        for name, unit in self.config.units.items():
            if units.get(name, unit) != unit:
                raise UserError(
                    f"{name} is in {units[name]}, expected {unit}; convert it, or correct its unit"
                )

    def _require_patches(self, values: MeshValues) -> None:
        for name, quantity in self.config.quantities.items():
            if name not in values.weights:
                there = ", ".join(values.patches) or "none"
                raise UserError(f"quantities.{name}: no patch {quantity.patch!r}; its patches are {there}")

    def _inputs(self, values: MeshValues) -> Iterator[ndarray]:
        """Fields and derived inputs, in the order of `MeshFields.spec`."""
        for name in self.config.inputs:
            yield _finite(name, self._field(values, name))
        for name in self.config.derived:
            derived = values.derived[name]
            parts = derived[:, self._axes()] if derived.ndim > 1 else derived
            yield parts.reshape(len(parts), -1)

    def _numbers(self, file: CaseFile, values: MeshValues, count: int) -> Iterator[ndarray]:
        """Numbers of the case from `given`, the table or the file, in this order."""
        given = {**self.table.of(file), **self.given}
        if values.time is not None:
            given.setdefault("time", values.time)
        for name in self.config.globals:
            if name not in self.given and name in self.config.expressions:
                given[name] = evaluate(name, self.config.expressions[name], file, given)
            if name in given:
                row = np.array([[given[name]]])
            elif name in values.numbers:
                row = self._components(name, values.numbers[name].reshape(1, -1).astype(float))
            else:
                table = f" and {self.table.path} has no row for it" if self.table.path else ""
                raise UserError(
                    f"it holds no number {name!r}{table}; expected it in the field data, as a constant "
                    f"field, in a cases.csv in its folder, in --parameters, or with --given {name}=…"
                )
            if not np.isfinite(row).all():
                raise UserError(f"{name} is {row.ravel().tolist()}, expected a finite number")
            yield np.repeat(row, count, axis=0)

    def _target(self, values: MeshValues, name: str) -> ndarray:
        target = self._field(values, name)
        if name not in self.config.surface_targets or values.surface is None:
            return _finite(name, target)
        _finite(f"{name} on the surface", target[values.surface])
        return np.where(values.surface[:, None], target, np.nan)

    def _field(self, values: MeshValues, name: str) -> ndarray:
        found = values.fields.get(name)
        if found is None:
            raise UserError(f"it holds no {name!r}; {did_you_mean(name, values.known)}")
        return self._components(name, found.reshape(len(found), -1).astype(float))

    def _components(self, name: str, values: ndarray) -> ndarray:
        """Components of a field (K, C) selected by the configuration, by letter or number."""
        parts, count = self.config.components.get(name), values.shape[1]
        if parts is None:
            if count != 1:
                raise UserError(
                    f"{name} has {count} components; choose some, as in components: {{{name}: [x, y]}}"
                )
            return values
        index = [
            AXES.index(part) if part in AXES else int(part) if part.isdecimal() else -1 for part in parts
        ]
        if min(index) < 0 or max(index) >= count:
            raise UserError(
                f"{name} has {count} components, expected {list(parts)}; they are named x, y, z or 0, 1, …"
            )
        return values[:, index]


@contextmanager
def _errors_of(file: CaseFile) -> Iterator[None]:
    """Prefix error messages with the path of the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file.path}: {error}") from None


def _finite(what: str, values: ndarray) -> ndarray:
    if bad := int((~np.isfinite(values)).any(axis=1).sum()):
        raise UserError(f"{what} has NaN or infinite values at {bad} of {len(values)} points")
    return values


def _columns(parts: Iterable[ndarray], count: int) -> Float[ndarray, "K C"]:
    return np.concatenate([np.empty((count, 0)), *parts], axis=1).astype(np.float32)
