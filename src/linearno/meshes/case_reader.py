"""Files of simulations to cases, as a configuration asks for them.

Axes: K points or cells of a case, Q other places, X coordinates, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray

from linearno.core.errors import UserError, did_you_mean
from linearno.data.sample import Batch
from linearno.meshes.config import AXES, CasesConfig
from linearno.meshes.discover import CaseFile, Table
from linearno.meshes.reader.ipc import Arrays, Words
from linearno.meshes.reader_process import Reader


class Case(NamedTuple):
    """One case as a model takes it, in physical units; targets are NaN where the file does not tell them."""

    file: CaseFile
    coords: Float[ndarray, "K X"]
    inputs: Float[ndarray, "K C_in"]
    targets: Float[ndarray, "K C"]
    surface: Bool[ndarray, "K"] | None
    found: tuple[str, ...]  # targets that are in the file

    def sample(self) -> Batch:
        inputs, targets = torch.from_numpy(self.inputs), torch.from_numpy(self.targets)
        return Batch(torch.from_numpy(self.coords), inputs if inputs.shape[1] else None, targets)


@dataclass(frozen=True)
class CaseReader:
    """Files to cases, as one configuration asks for it. `given`: numbers of the case that no file tells."""

    config: CasesConfig
    table: Table
    given: dict[str, float] | None = None

    def read(self, reader: Reader, file: CaseFile, *, truth: bool = True) -> Case:
        """With `truth` all targets must be there; without, those that are there."""
        config = self.config
        words, arrays = reader.ask("read", file.path, file.places | self.wish())
        self._check(file, words)
        places = arrays["places"][:, [AXES.index(axis) for axis in config.coords]]
        inputs = [self._field(file, words, arrays, name) for name in config.inputs]
        inputs += [_axes(config, name, arrays[f"derived:{name}"]) for name in config.derived]
        inputs += [self._value(file, arrays, name, len(places)) for name in config.globals]
        surface = arrays["surface"].astype(bool) if "surface" in arrays else None
        there = [name for name in config.targets if truth or f"field:{name}" in arrays]
        targets = [
            self._target(file, words, arrays, name, surface)
            if name in there
            else np.full((len(places), len(config.channels(name))), np.nan)
            for name in config.targets
        ]
        return Case(
            file,
            places.astype(np.float32),
            _beside(inputs, len(places)),
            _beside(targets, len(places)),
            surface,
            tuple(there),
        )

    def wish(self) -> Words:
        config = self.config
        return {
            "location": config.location,
            "fields": [*config.inputs, *config.targets],
            "values": [name for name in config.globals if name not in (self.given or {})],
            "derived": list(config.derived),
            "surface": config.surface or "own",
            "mark_surface": config.surface is not None and config.location == "points",
            "tolerate": list(config.tolerate),
        }

    def at(self, reader: Reader, file: CaseFile, places: Float[ndarray, "Q 3"]) -> Float[ndarray, "Q C_in"]:
        """The inputs of a case at other places; fields are taken from the cells that hold them."""
        config = self.config
        wish = file.places | self.wish() | {"fields": list(config.inputs)}
        _, arrays = reader.ask("probe", file.path, wish, {"places": places})
        outside = int((~arrays["inside"].astype(bool)).sum()) if "inside" in arrays else 0
        if outside:
            raise UserError(
                f"{file.path}: {outside} of {len(places)} points lie outside the mesh, where "
                f"{', '.join(config.inputs)} is not known"
            )
        inputs = [self._field(file, {}, arrays, name) for name in config.inputs]
        inputs += [_axes(config, name, arrays[f"derived:{name}"]) for name in config.derived]
        values: Arrays = {}
        if config.globals:
            _, values = reader.ask("read", file.path, wish | {"derived": [], "mark_surface": False})
        inputs += [self._value(file, values, name, len(places)) for name in config.globals]
        return _beside(inputs, len(places))

    def _check(self, file: CaseFile, words: Words) -> None:
        axes, config = words["axes"], self.config
        if extra := [axis for axis in axes if axis not in config.coords]:
            raise UserError(
                f"{file.path} has an extent along {', '.join(axes)}, and {config.coords} are asked for: "
                f"expected a mesh in a plane, without {extra[0]}"
            )
        if len(axes) < len(config.coords):
            raise UserError(
                f"{file.path} has an extent along {', '.join(axes) or 'no axis'} only, and {config.coords} "
                "are asked for: expected a mesh with as many dimensions"
            )
        units = {**self.table.units, **words["units"]}
        for name, unit in config.units.items():
            if units.get(name, unit) != unit:
                raise UserError(
                    f"{file.path}: {name} is in {units[name]}, expected {unit}; convert it, or mend its unit"
                )

    def _field(self, file: CaseFile, words: Words, arrays: Arrays, name: str) -> ndarray:
        values = self._raw(file, words, arrays, name)
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).any(axis=1).sum())
            raise UserError(
                f"{file.path}: {name} has NaN or infinite values at {bad} of {len(values)} places"
            )
        return values

    def _target(
        self, file: CaseFile, words: Words, arrays: Arrays, name: str, surface: ndarray | None
    ) -> ndarray:
        if name not in self.config.surface_targets or surface is None:
            return self._field(file, words, arrays, name)
        values = self._raw(file, words, arrays, name)
        if not np.isfinite(values[surface]).all():
            raise UserError(f"{file.path}: {name} has NaN or infinite values on the surface")
        return np.where(surface[:, None], values, np.nan)

    def _raw(self, file: CaseFile, words: Words, arrays: Arrays, name: str) -> ndarray:
        values = arrays.get(f"field:{name}")
        if values is None:
            known = [*words["names"]["points"], *words["names"]["cells"]]
            raise UserError(f"{file.path} holds no {name!r}; {did_you_mean(name, known)}")
        return _components(self.config, file, name, values.reshape(len(values), -1).astype(float))

    def _value(self, file: CaseFile, arrays: Arrays, name: str, count: int) -> ndarray:
        """A number of the case, at each of its points: given, in the table, or in the file."""
        given = {**self.table.of(file), **(self.given or {})}
        if name in given:
            row = np.array([[given[name]]])
        elif f"value:{name}" in arrays:
            row = _components(self.config, file, name, arrays[f"value:{name}"].reshape(1, -1).astype(float))
        else:
            beside = f" and {self.table.path} has no row for it" if self.table.path else ""
            raise UserError(
                f"{file.path} holds no number {name!r}{beside}; expected it in the field data, as a constant "
                f"field, in a cases.csv beside it, or with --given {name}=…"
            )
        if not np.isfinite(row).all():
            raise UserError(f"{file.path}: {name} is {row.ravel().tolist()}, expected a finite number")
        return np.repeat(row, count, axis=0)


def _components(config: CasesConfig, file: CaseFile, name: str, values: ndarray) -> ndarray:
    """Those components of a field that are asked for, by letter or number."""
    parts = config.components.get(name)
    if parts is None:
        if values.shape[1] != 1:
            raise UserError(
                f"{file.path}: {name} has {values.shape[1]} components; say which, as in "
                f"components: {{{name}: [x, y]}}"
            )
        return values
    index = [AXES.index(part) if part in AXES else int(part) if part.isdecimal() else -1 for part in parts]
    if min(index) < 0 or max(index) >= values.shape[1]:
        raise UserError(
            f"{file.path}: {name} has {values.shape[1]} components, and {list(parts)} are asked for; they "
            "are named x, y, z or 0, 1, …"
        )
    return values[:, index]


def _axes(config: CasesConfig, name: str, values: ndarray) -> ndarray:
    if name == "normals":
        return values[:, [AXES.index(axis) for axis in config.coords]]
    return values.reshape(-1, 1)


def _beside(parts: Sequence[ndarray], count: int) -> Float[ndarray, "K C"]:
    return np.concatenate([np.empty((count, 0)), *parts], axis=1).astype(np.float32)
