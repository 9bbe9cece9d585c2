"""Summarise a folder of cases, and infer inputs and targets of a model."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from linearno.core.errors import UserError, did_you_mean
from linearno.meshes.config import POSITIONAL, CasesConfig
from linearno.meshes.discover import Share
from linearno.meshes.expressions import dictionary_path, foam_entry, read_dictionary
from linearno.meshes.reader import commands
from linearno.meshes.reader.commands import TOLERABLE, FieldSummary, MeshSummary
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.reader.mesh import CaseFile
from linearno.meshes.reader_process import Reader, UnreadableCase, read_in_parallel
from linearno.meshes.tables import Table

BOOKKEEPING = re.compile(  # names of fields that programs add to files
    "vtkOriginal|vtkGhost|vtkValid|GlobalNode|GlobalElement|ObjectId|PedigreeIds|TimeValue|TIME$|CYCLE$|Normals|ERROR$"
    "|TCoords|Texture"
)
INPUT_NAMES = re.compile(  # of quantities known before a simulation
    "permeab|conduct|coeff|kappa|modulus|thick|material|poros|young|poisson|distance|sdf|normal|curvature|area"
    "|boundary|mask|marker|source|load|initial|inlet"
)
DICTIONARIES = ("0/U", "0/p", "0/T", "constant/transportProperties")  # searched for parameters
ENTRY = re.compile(r"^internalField$|\.value$|^nu$|^DT$|\.nu$")
MAX_EXPRESSIONS = 6
BODY_PATCHES = re.compile(  # names of patches that are walls of a body
    "wall|body|airfoil|aerofoil|wing|car|hull|cylinder|blade|obstacle|sphere|plate|bike|ship|vehicle|building|foil"
)
MASK_NAMES = re.compile("surface|wall|body|boundary|airfoil|wing|car")  # of masks of the surface
MAX_COMPONENTS = 9
MAX_LISTED = 5
TIME = "time"  # parameter of the frames of a simulation
FAR_FIELD = 10  # extent of a mesh over the size of its body, from which positions are transformed
LINEAR_SHARE = 0.2  # of the size of the body, below which positions are not compressed
NEGLIGIBLE = 1e-6  # component of a vector across the plane of a mesh, over the largest one
MAX_NUMBER_COMPONENTS = 3


@dataclass(frozen=True)
class FolderSummary:
    """Contents of a folder of cases.

    Args:
        files: readable cases.
        meshes: summary of each readable case.
        unreadable: unreadable cases.
        table: numbers of the cases.
    """

    files: list[CaseFile]
    meshes: list[MeshSummary]
    unreadable: list[UnreadableCase]
    table: Table

    @cached_property
    def fields(self) -> list[FieldSummary]:
        """All fields, merged over the cases."""
        found = [field for mesh in self.meshes for field in mesh.fields]
        for file, mesh in zip(self.files, self.meshes, strict=True):
            numbers = dict(self.table.of(file))
            if file.frame is not None and mesh.times:
                numbers.setdefault(TIME, mesh.times[file.frame])
            for name, value in numbers.items():
                units = {self.table.units[name]} if name in self.table.units else set()
                found.append(FieldSummary(name, "table", 1, [value], [value], units=units))
        merged: dict[tuple[str, str], FieldSummary] = {}
        for field in found:
            key = field.name, field.location
            merged[key] = _merge(merged[key], field) if key in merged else field
        return list(merged.values())

    @property
    def points(self) -> list[int]:
        """Number of points of each case, in ascending order."""
        return sorted(mesh.points for mesh in self.meshes)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes along which most cases have an extent."""
        axes = [tuple(mesh.axes) for mesh in self.meshes]
        return max(axes, key=axes.count)

    @property
    def patches(self) -> dict[str, int]:
        """Number of cases with each patch."""
        found: dict[str, int] = {}
        for mesh in self.meshes:
            for name in mesh.patches:
                found[name] = found.get(name, 0) + 1
        return found

    @property
    def notes(self) -> list[str]:
        """What a user should know about the folder as a whole."""
        lines = list(self.table.mismatches(self.files))
        for name, count in self.patches.items():
            if count < len(self.files):
                without = [not mesh.patches.get(name) for mesh in self.meshes]
                lines.append(f"patch {name} is missing in {self._listed(without)}")
        others = [tuple(mesh.axes) != self.axes for mesh in self.meshes]
        if any(others):
            lines.append(f"meshes differ in their axes: not {', '.join(self.axes)} in {self._listed(others)}")
        if any(len(mesh.times) > 1 for mesh in self.meshes) and all(
            file.frame is None for file in self.files
        ):
            lines.append("simulations have several times; the last is used, or all with --frames all")
        return lines

    def _listed(self, chosen: Sequence[bool]) -> str:
        """Number and names of some cases."""
        names = [file.name for file, one in zip(self.files, chosen, strict=True) if one]
        more = ", …" if len(names) > MAX_LISTED else ""
        return f"{len(names)} of {len(self.files)} cases: {', '.join(names[:MAX_LISTED])}{more}"

    @property
    def share_meshes(self) -> bool:
        """Whether all meshes are of the same size and extent."""
        return len({(mesh.points, mesh.cells, mesh.extent, *mesh.center) for mesh in self.meshes}) == 1

    @property
    def thin(self) -> str | None:
        """How the meshes were reduced to their plane, if all were."""
        found = [mesh.thin for mesh in self.meshes if mesh.thin]
        return found[0] if len(found) == len(self.meshes) else None

    @property
    def faults(self) -> dict[str, list[str]]:
        """Messages by kind of fault."""
        found: dict[str, list[str]] = {}
        for file, mesh in zip(self.files, self.meshes, strict=True):
            for fault, message in mesh.faults.items():
                found.setdefault(fault, []).append(f"{file.path} {message}")
        return found


def summarise_folder(
    files: Sequence[CaseFile], table: Table, on_done: Callable[[int], None] = lambda count: None
) -> FolderSummary:
    """Summarise each file; `on_done(1)` is called after each."""

    def summarise(reader: Reader, file: CaseFile) -> tuple[CaseFile, MeshSummary]:
        return file, reader.call(commands.summarise, file)

    results = read_in_parallel(summarise, files, on_done)
    bad = [result for result in results if isinstance(result, UnreadableCase)]
    good = [result for result in results if not isinstance(result, UnreadableCase)]
    return FolderSummary([file for file, _ in good], [mesh for _, mesh in good], bad, table)


def _merge(first: FieldSummary, other: FieldSummary) -> FieldSummary:
    mixed = first.mixed or first.components != other.components
    has_range = bool(other.low) and not mixed
    return replace(
        first,
        low=list(map(min, first.low or other.low, other.low)) if has_range else first.low,
        high=list(map(max, first.high or other.high, other.high)) if has_range else first.high,
        missing=first.missing + other.missing,
        constant=first.constant and other.constant,
        integer=first.integer and other.integer,
        surface_only=first.surface_only and other.surface_only,
        units=first.units | other.units,
        cases=first.cases + other.cases,
        mixed=mixed,
    )


@dataclass(frozen=True)
class InitOptions:
    """Choices of the user for fields of a `dataset.yaml`; None: infer the field."""

    targets: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None
    globals: tuple[str, ...] | None = None
    derived: tuple[str, ...] | None = None
    test: Share = 0.2


def infer_schema(summary: FolderSummary, options: InitOptions) -> dict[str, Any]:
    """Values for a `CasesConfig`: the user's choices, and inferred values for the other fields."""
    fields = {field.name: field for field in reversed(summary.fields)}  # points take precedence over cells
    for name in (*(options.targets or ()), *(options.inputs or ()), *(options.globals or ())):
        if name not in fields:
            raise UserError(f"no case holds {name!r}; {did_you_mean(name, fields)}")
    usable = [field for field in summary.fields if _is_usable(field, len(summary.files))]
    varying = [field for field in usable if field.location in ("points", "cells") and not field.constant]
    location = _location(summary, options.targets or [field.name for field in usable if not field.constant])
    local = [field for field in varying if field.location == location] or varying
    mask = next((field.name for field in local if field.is_mask and _matches(MASK_NAMES, field)), None)
    surface = _surface(summary, mask)
    inputs, targets = options.inputs, options.targets
    if inputs is None:  # if targets are given, other fields may depend on them
        inputs = () if targets else tuple(field.name for field in local if _matches(INPUT_NAMES, field))
    if targets is None:
        targets = tuple(field.name for field in local if field.name not in (*inputs, mask))
    if not targets:
        names = ", ".join(fields) or "none"
        kinds = sorted({file.path.suffix or "OpenFOAM" for file in summary.files})
        mixed = f"; the cases are of several formats ({', '.join(kinds)}), choose one with --files"
        hint = mixed if len(kinds) > 1 else ""
        raise UserError(f"no field could be a target; name it with --targets; found: {names}{hint}")
    numbers = options.globals
    if numbers is None:
        constant = [field.name for field in usable if _is_number(field)]
        numbers = tuple(dict.fromkeys(name for name in constant if name not in (*targets, *inputs)))
    told = options.globals is not None or any(name != TIME for name in numbers)
    expressions = {} if told else differing_entries(summary.files)
    return {
        "location": location,
        "coords": summary.axes,
        "targets": targets,
        "surface_targets": tuple(name for name in targets if surface and fields[name].surface_only),
        "inputs": inputs,
        "globals": (*numbers, *expressions),
        "expressions": expressions,
        "components": {
            name: parts
            for name in dict.fromkeys([*targets, *inputs, *numbers])
            if (parts := _components(fields[name], summary.axes))
        },
        "surface": surface,
        "derived": options.derived if options.derived is not None else _derived(summary, surface),
        "position": _position(summary, surface),
        "units": {field.name: min(field.units) for field in summary.fields if len(field.units) == 1},
        "test": options.test,
        "tolerate": tuple(fault for fault in TOLERABLE if fault in summary.faults),
    }


def differing_entries(files: Sequence[CaseFile]) -> dict[str, str]:
    """Expressions for numbers in OpenFOAM dictionaries that differ between the cases.

    Velocities come first; an entry that differs in the same way as an earlier one is left out.
    """
    found: dict[str, str] = {}
    columns: list[list[float]] = []
    for dictionary in DICTIONARIES:
        paths = [dictionary_path(file, dictionary) for file in files]
        if not all(paths):
            continue
        entries = [read_dictionary(path, path.stat().st_mtime_ns) for path in paths if path]
        for entry in (name for name in entries[0] if all(name in other for other in entries)):
            if ENTRY.search(entry) and len({other[entry] for other in entries}) > 1:
                for name, text, column in _numbers_of(files, dictionary, entry):
                    if not any(np.allclose(column, other) for other in columns):
                        columns.append(column)
                        found[name] = text
    return dict(list(found.items())[:MAX_EXPRESSIONS])


def _numbers_of(
    files: Sequence[CaseFile], dictionary: str, entry: str
) -> Iterator[tuple[str, str, list[float]]]:
    """Name, expression and values of the numbers of an entry that differ between the cases."""
    try:
        values = [np.atleast_1d(foam_entry(file, dictionary, entry)) for file in files]
    except UserError:
        return
    if len({len(value) for value in values}) > 1 or len(values[0]) > len(AXES):
        return
    place = entry.removesuffix(".value").rpartition(".")[2].replace("internalField", "inflow")
    for k, column in enumerate(np.array(values).T.tolist()):
        if len(set(column)) > 1:
            field = dictionary.rpartition("/")[2]
            name = place if field in ("U", "transportProperties") else f"{field}_{place}"
            text = f'foam("{dictionary}", "{entry}")'
            if len(values[0]) == 1:
                yield name, text, column
            else:
                yield f"{name}_{AXES[k]}", f"{text}[{k}]", column


def _is_usable(field: FieldSummary, cases: int) -> bool:
    if BOOKKEEPING.match(field.name) or field.name.lower() in AXES:
        return False
    known = field.missing == 0 or field.surface_only
    whole = field.cases == cases and known and not field.mixed
    return whole and field.varies and field.components <= MAX_COMPONENTS


def _is_number(field: FieldSummary) -> bool:
    return field.constant and field.components <= MAX_NUMBER_COMPONENTS


def _matches(pattern: re.Pattern[str], field: FieldSummary) -> bool:
    return pattern.search(field.name.lower()) is not None


def _location(summary: FolderSummary, names: Sequence[str]) -> str:
    """Location of the first of these fields; points, if it is at both."""
    locations = [field.location for field in summary.fields if field.name in names[:1]]
    return "cells" if "cells" in locations and "points" not in locations else "points"


def _surface(summary: FolderSummary, mask: str | None) -> str | None:
    if all(file.surface for file in summary.files):
        return "beside"
    bodies = [
        name
        for name, count in summary.patches.items()
        if count == len(summary.files) and BODY_PATCHES.search(name.lower())
    ]
    if bodies:
        return ",".join(bodies)
    if any(mesh.cell_dimension < 2 for mesh in summary.meshes):
        return None
    return mask or "own"


def _derived(summary: FolderSummary, surface: str | None) -> tuple[str, ...]:
    """Normals of meshes that are surfaces; otherwise the distance, signed if all surfaces are closed."""
    if _is_far_field(summary, surface):  # a small body in a large domain
        return (*(["log_distance"] if surface else []), *POSITIONAL)
    if surface is None:
        return ()
    if surface == "own" and all(mesh.is_surface for mesh in summary.meshes):
        return ("normals",)
    closed = surface in ("own", "beside") and all(
        mesh.open_edges.get(surface) == 0 for mesh in summary.meshes
    )
    return ("distance" if closed else "unsigned_distance",)


def _is_far_field(summary: FolderSummary, surface: str | None) -> bool:
    return all(mesh.extent > FAR_FIELD * _body(mesh, surface)[1] > 0 for mesh in summary.meshes)


def _body(mesh: MeshSummary, surface: str | None) -> tuple[ndarray, float]:
    """Center and size of the patches that are the surface; of most points without such patches."""
    boxes = [mesh.boxes[name] for name in (surface or "").split(",") if name in mesh.boxes]
    if not boxes:
        return np.array(mesh.center or [0.0, 0.0, 0.0]), 2 * mesh.spread
    low, high = np.array(boxes).min(axis=0)[0], np.array(boxes).max(axis=0)[1]
    return (low + high) / 2, float((high - low).max())


def _position(summary: FolderSummary, surface: str | None) -> dict[str, Any] | None:
    """Transform of positions from the size of the body, or the spread of the points."""
    bodies = [_body(mesh, surface) for mesh in summary.meshes]
    scale = LINEAR_SHARE * float(np.median([size for _, size in bodies]))
    if not scale:
        return None
    center = np.median([center for center, _ in bodies], axis=0)
    digits = 2 - int(np.floor(np.log10(scale)))
    return {"center": tuple(round(float(x), digits) + 0.0 for x in center), "scale": round(scale, digits)}


def _components(field: FieldSummary, axes: Sequence[str]) -> tuple[str, ...]:
    """Components of a vector or tensor; for a plane mesh without the component that is always 0."""
    if field.components == 1:
        return ()
    names = AXES[: field.components] if field.components <= 3 else map(str, range(field.components))
    if len(axes) > 2 or field.components != 3:
        return tuple(names)
    ranges, size = (
        zip(names, field.low, field.high, strict=True),
        max(map(abs, [*field.low, *field.high, 0.0])),
    )
    return tuple(
        name for name, *values in ranges if name in axes or max(map(abs, values)) > NEGLIGIBLE * size
    )


def notes_on(field: FieldSummary, summary: FolderSummary) -> Iterator[str]:
    """Warnings about a field, for the user."""
    local = field.location in ("points", "cells")
    if field.cases < len(summary.files):
        yield f"missing in {len(summary.files) - field.cases} cases"
    if field.mixed:
        yield "different numbers of components"
    if field.surface_only and field.location == "points":
        yield "on the surface only"
    elif field.missing:
        yield f"NaN at {field.missing} points"
    if not field.varies and not field.mixed:
        yield "the same everywhere"
    elif field.constant and local:
        yield "one number a case"
    if len(field.units) > 1:
        yield f"units differ: {', '.join(sorted(field.units))}"


def role_of(field: FieldSummary, config: CasesConfig) -> str:
    """Role of the field in a configuration."""
    local = field.location in ("points", "cells")
    roles: Iterable[tuple[str, bool, Iterable[str]]] = (
        ("target on the surface", local, config.surface_targets),
        ("target", local, config.targets),
        ("input", local, config.inputs),
        ("number of the case", not local or field.constant, config.globals),
        ("marks the surface", local, (config.surface or "",)),
    )
    return next((role for role, fits, names in roles if fits and field.name in names), "")
