"""A user's own simulations: a folder of mesh files, and a `dataset.yaml` that says what to learn from them.

Axes: K points or cells of a case, X coordinates, C channels.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from linearno.core.config import read_yaml
from linearno.core.errors import UserError, did_you_mean
from linearno.data.benchmark import DataConfig, FieldData, Splits
from linearno.data.case_files import CaseFile, Share, Table, find_cases, read_table, split_cases
from linearno.data.mesh.wire import Arrays, Words
from linearno.data.reader import Reader, results_of
from linearno.data.sample import FieldSpec, Sample

log = logging.getLogger(__name__)

Axis = Literal["x", "y", "z"]
Derived = Literal["distance", "unsigned_distance", "normals", "curvature"]
Fault = Literal["degenerate", "duplicates"]
AXES = ("x", "y", "z")
EXAMPLE = 100  # cases that `linearno data generate cases` makes unless it is told how many
READERS = 8  # at most, at once


def _a_share(share: Share) -> Share:
    if isinstance(share, tuple) and share:
        return share
    if isinstance(share, tuple) or not (share >= 1 if isinstance(share, int) else 0 < share <= 1):
        raise ValueError(
            f"expected a fraction up to 1.0, a number of cases, or a list of patterns; got {share!r}"
        )
    return share


ShareOf = Annotated[Share, AfterValidator(_a_share)]


class CasesConfig(DataConfig):
    """What `dataset.yaml` says. `linearno init FOLDER` writes one, with a comment at each line."""

    name: Literal["cases"] = "cases"
    root: Path = Path("cases")
    files: str = "**/*"  # pattern of the case files in `root`
    location: Literal["points", "cells"] = "points"  # where the fields are that are learned
    coords: tuple[Axis, ...] = ("x", "y")
    targets: tuple[str, ...] = ("displacement", "stress")
    surface_targets: tuple[str, ...] = ()  # those that are known on the surface alone
    inputs: tuple[str, ...] = ()
    globals: tuple[str, ...] = ()  # numbers of the whole case
    components: dict[str, tuple[str, ...]] = Field(default={"displacement": ("x", "y")})  # of vectors
    surface: str | None = None  # `own`, `beside` (an .stl file of the same name), or a field that marks it
    derived: tuple[Derived, ...] = ()
    units: dict[str, str] = Field(default={})
    test: ShareOf = 0.2  # type: ignore[assignment]  # a fraction, a number of cases, or patterns of names
    train: ShareOf = 1.0  # type: ignore[assignment]  # the same, of those that are left
    seed: NonNegativeInt = 0  # of the order in which cases are drawn for both
    tolerate: tuple[Fault, ...] = ()
    skip_bad: bool = False  # leave out cases that cannot be used, and say which

    @property
    def sizes(self) -> dict[str, int]:
        """Of an example that is still to be made."""

        shares = {"test": self.test, "train": self.train}
        left, sizes = EXAMPLE, {}
        for split, share in shares.items():
            sizes[split] = (
                share if isinstance(share, int) else left if isinstance(share, tuple) else int(share * left)
            )
            left -= sizes[split]
        return sizes

    @model_validator(mode="after")
    def _says_enough(self) -> "CasesConfig":
        if not self.targets:
            raise ValueError("targets: name one field or more that is to be predicted")
        if self.derived and self.surface is None:
            raise ValueError(
                f"derived={list(self.derived)} is measured from a surface: set surface, as to own"
            )
        if extra := set(self.surface_targets) - set(self.targets):
            raise ValueError(
                f"surface_targets: {extra.pop()!r} is not one of the targets {list(self.targets)}"
            )
        if self.surface_targets and self.surface is None:
            raise ValueError("surface_targets are known on a surface: set surface, as to own")
        if both := set(self.targets) & {*self.inputs, *self.globals}:
            raise ValueError(
                f"{both.pop()!r} is a target and an input; a model that is told it learns nothing"
            )
        if len(self.coords) < 2 or len(set(self.coords)) < len(self.coords):
            raise ValueError(f"coords: expected two or three different axes, got {list(self.coords)}")
        return self

    def channels(self, field: str) -> tuple[str, ...]:
        """The names of a field's channels."""
        parts = self.coords if field == "normals" else self.components.get(field, ())
        return tuple(f"{field}_{part}" for part in parts) or (field,)

    @property
    def spec(self) -> FieldSpec:
        """What a model is told, and what it is asked for."""
        given = (*self.inputs, *self.derived, *self.globals)
        fields = {field: self.channels(field) for field in (*given, *self.targets)}
        units = {
            channel: self.units[field]
            for field, channels in ({axis: (axis,) for axis in self.coords} | fields).items()
            for channel in channels
            if field in self.units
        }
        return FieldSpec(
            coords=self.coords,
            inputs=tuple(channel for field in given for channel in fields[field]),
            outputs=tuple(channel for field in self.targets for channel in fields[field]),
            units=units,
            scaled=("coords", "inputs", "outputs"),
            vectors={field: channels for field, channels in fields.items() if channels != (field,)},
            partial=tuple(channel for field in self.surface_targets for channel in fields[field]),
        )


def read_dataset(path: Path) -> CasesConfig:
    """A `dataset.yaml`; its folder is seen from where the file lies."""
    config = read_yaml(path, CasesConfig)
    return config.model_copy(update={"root": Path(os.path.normpath(path.parent / config.root))})


class Case(NamedTuple):
    """One case as a model takes it, in physical units; targets are NaN where the file does not tell them."""

    file: CaseFile
    coords: Float[ndarray, "K X"]
    inputs: Float[ndarray, "K C_in"]
    targets: Float[ndarray, "K C"]
    surface: Bool[ndarray, "K"] | None
    found: tuple[str, ...]  # targets that are in the file

    def sample(self) -> Sample:
        inputs, targets = torch.from_numpy(self.inputs), torch.from_numpy(self.targets)
        return Sample(torch.from_numpy(self.coords), inputs if inputs.shape[1] else None, targets)


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


class Bad(NamedTuple):
    """A case that cannot be used, and why."""

    file: CaseFile
    why: str


def read_cases(config: CasesConfig, files: Sequence[CaseFile]) -> tuple[list[Case], list[Bad]]:
    """The cases of these files, read by several processes at once, and those that cannot be used.

    Without `skip_bad` the latter are an error.
    """
    cases, source = (
        [],
        CaseReader(config, read_table(config.root if config.root.is_dir() else config.root.parent)),
    )

    def one(reader: Reader, file: CaseFile) -> Case | Bad:
        try:
            return source.read(reader, file)
        except UserError as error:
            return Bad(file, str(error))

    bad: list[Bad] = []
    with results_of(one, files, min(READERS, os.cpu_count() or 1)) as results:
        for result in results:
            if isinstance(result, Case):
                cases.append(result)
            else:
                bad.append(result)
    if bad and not config.skip_bad:
        more = f"and {len(bad) - 1} more of {len(files)} cases; " if len(bad) > 1 else ""
        raise UserError(f"{bad[0].why} ({more}data.skip_bad=true goes on without)")
    return cases, bad


def open_cases(config: CasesConfig) -> Splits:
    """Both splits in memory, packed: meshes of different sizes one after another.

    Disk   what `root` holds, described by the configuration
    Item   coords (K, X), inputs (K, C) or none, targets (K, C); of points or of cells
    """
    train, test = split_cases(find_cases(config.root, config.files), config.train, config.test, config.seed)
    cases, bad = read_cases(config, [*train, *test])
    for line in bad_lines(bad):
        log.warning("%s", line)
    tested = {file.name for file in test}
    parts = [
        _packed(config, [case for case in cases if (case.file.name in tested) == (split == "test")], split)
        for split in ("train", "test")
    ]
    source = f"{len(cases)} cases in {config.root}" + (
        f", without {len(bad)} that were skipped" if bad else ""
    )
    return Splits(parts[0], parts[1], source)


def bad_lines(bad: Sequence[Bad]) -> Iterable[str]:
    """What was left out and why, and how many there are."""
    yield from (f"skipped: {one.why}" for one in bad)
    if bad:
        yield f"{len(bad)} case{'s' if len(bad) > 1 else ''} skipped"


def _packed(config: CasesConfig, cases: Sequence[Case], split: str) -> FieldData:
    if not cases:
        raise UserError(f"no case of the {split} split in {config.root} can be used")
    surface = [torch.from_numpy(case.surface) for case in cases if case.surface is not None]
    return FieldData.pack(config.spec, [case.sample() for case in cases], surface or None)


def verify_cases(root: Path) -> list[str]:
    """What is wrong with the files in a folder, a line each."""

    def one(reader: Reader, file: CaseFile) -> str | None:
        try:
            words: dict[str, Any] = reader.ask("look", file.path, file.places)[0]
        except UserError as error:
            return str(error)
        return next((f"{file.path} {fault}" for fault in words["faults"].values()), None)

    try:
        with results_of(one, find_cases(root), min(READERS, os.cpu_count() or 1)) as results:
            return [line for line in results if line]
    except UserError as error:
        return [str(error)]
