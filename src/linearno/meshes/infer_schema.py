"""A first look at a folder of cases: what its files hold, and a guess at what is to be learned from them."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from linearno.core.errors import UserError, did_you_mean
from linearno.meshes.cases import READERS, Bad
from linearno.meshes.config import AXES, CasesConfig
from linearno.meshes.discover import CaseFile, Share, Table
from linearno.meshes.reader.ipc import Words
from linearno.meshes.reader_process import Reader, results_of

LEFT_BEHIND = re.compile(  # by programs, in a file of fields
    "vtkOriginal|vtkGhost|vtkValid|GlobalNode|GlobalElement|ObjectId|PedigreeIds|TimeValue|TIME$|CYCLE$|Normals"
    "|TCoords|Texture"
)
GIVEN = re.compile(  # what is known before a simulation, by its name
    "permeab|conduct|coeff|kappa|modulus|thick|material|poros|young|poisson|distance|sdf|normal|curvature|area"
    "|boundary|mask|marker|source|load|initial|inlet"
)
MARKS = re.compile("surface|wall|body|boundary|airfoil|wing|car")  # and what marks a surface
SURFACE_WORDS = {"own": "the boundary of the mesh", "beside": "the .stl file beside each case"}


@dataclass
class Field:
    """What is known of one field, over all cases."""

    name: str
    location: str  # points, cells, case, or table
    components: int
    cases: int = 0
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    missing: int = 0  # places without a number
    constant: bool = True  # in each case
    integer: bool = True
    rim_only: bool = True
    units: set[str] = field(default_factory=set)
    mixed: bool = False  # another number of components in some cases

    @property
    def varies(self) -> bool:
        return self.low != self.high

    @property
    def marks(self) -> bool:
        """Looks like yes and no."""
        return self.integer and self.components == 1 and self.low == [0.0] and self.high == [1.0]


@dataclass(frozen=True)
class Looked:
    """A folder that was looked at."""

    files: list[CaseFile]  # those that can be read
    facts: list[Words]  # of each
    bad: list[Bad]
    table: Table

    @property
    def fields(self) -> list[Field]:
        found: dict[tuple[str, str], Field] = {}
        for facts in self.facts:
            for one in facts["fields"]:
                key = one["name"], one["location"]
                _add(found.setdefault(key, Field(*key, one["components"])), one, facts["units"])
        for file in self.files:
            for name, value in self.table.of(file).items():
                one = {"min": [value], "max": [value], "missing": 0, "constant": True, "integer": False}
                into = found.setdefault((name, "table"), Field(name, "table", 1))
                _add(into, one | {"components": 1, "rim_only": False}, self.table.units)
        return list(found.values())

    @property
    def points(self) -> list[int]:
        return sorted(facts["points"] for facts in self.facts)

    @property
    def axes(self) -> tuple[str, ...]:
        """Those that most cases have an extent along."""
        kinds = [tuple(facts["axes"]) for facts in self.facts]
        return max(kinds, key=kinds.count)

    @property
    def faults(self) -> dict[str, list[str]]:
        """By kind of fault, what is wrong with which case."""
        found: dict[str, list[str]] = {}
        for file, facts in zip(self.files, self.facts, strict=True):
            for fault, words in facts["faults"].items():
                found.setdefault(fault, []).append(f"{file.path} {words}")
        return found


def look_at(
    files: Sequence[CaseFile], table: Table, tick: Callable[[int], None] = lambda count: None
) -> Looked:
    """Read what each file holds; those that cannot be read are named, not fatal."""

    def one(reader: Reader, file: CaseFile) -> Words | Bad:
        try:
            return reader.ask("look", file.path, file.places)[0]
        except UserError as error:
            return Bad(file, str(error))

    good, facts, bad = [], [], []
    with results_of(one, files, min(READERS, os.cpu_count() or 1)) as results:
        for file, result in zip(files, results, strict=True):
            tick(1)
            if isinstance(result, Bad):
                bad.append(result)
            else:
                good.append(file)
                facts.append(result)
    return Looked(good, facts, bad, table)


def _add(into: Field, one: dict[str, Any], units: Any) -> None:
    into.cases += 1
    into.missing += one["missing"]
    into.constant &= one["constant"]
    into.integer &= one["integer"]
    into.rim_only &= one["rim_only"]
    into.mixed |= into.components != one["components"]
    if into.name in units:
        into.units.add(units[into.name])
    if one["min"] and not into.mixed:
        into.low = list(map(min, into.low or one["min"], one["min"]))
        into.high = list(map(max, into.high or one["max"], one["max"]))


@dataclass(frozen=True)
class Wishes:
    """What the user said; None: guess."""

    targets: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None
    globals: tuple[str, ...] | None = None
    derived: tuple[str, ...] | None = None
    test: Share = 0.2


def guess(looked: Looked, wishes: Wishes) -> dict[str, Any]:
    """Values for a `CasesConfig`: what was asked for, and sensible guesses for the rest."""
    fields = {each.name: each for each in reversed(looked.fields)}  # a field at points before one of cells
    for name in (*(wishes.targets or ()), *(wishes.inputs or ()), *(wishes.globals or ())):
        if name not in fields:
            raise UserError(f"no case holds {name!r}; {did_you_mean(name, fields)}")
    whole = [each for each in looked.fields if _usable(each, len(looked.files))]
    location = _location(looked, whole, wishes)
    spread = [each for each in whole if each.location in ("points", "cells") and not each.constant]
    own = [each for each in spread if each.location == location] or spread
    marks = next((each.name for each in own if each.marks and MARKS.search(each.name.lower())), None)
    surface = _surface(looked, marks)
    inputs = wishes.inputs if wishes.inputs is not None else _given(own, wishes.targets)
    rest = [each.name for each in own if each.name not in (*inputs, marks)]
    targets = wishes.targets if wishes.targets is not None else tuple(rest)
    if not targets:
        raise UserError(f"no field could be a target; name it with --targets; found: {_names(looked.fields)}")
    chosen = [fields[name] for name in dict.fromkeys([*targets, *inputs])]
    numbers = wishes.globals if wishes.globals is not None else _globals(whole, (*targets, *inputs))
    return {
        "location": location,
        "coords": looked.axes,
        "targets": targets,
        "surface_targets": tuple(name for name in targets if fields[name].rim_only) if surface else (),
        "inputs": inputs,
        "globals": numbers,
        "components": _parts([*chosen, *(fields[name] for name in numbers)], looked.axes),
        "surface": surface,
        "derived": wishes.derived if wishes.derived is not None else _derived(looked, surface),
        "units": {each.name: min(each.units) for each in looked.fields if len(each.units) == 1},
        "test": wishes.test,
        "tolerate": tuple(fault for fault in ("degenerate", "duplicates") if fault in looked.faults),
    }


def _usable(each: Field, cases: int) -> bool:
    if LEFT_BEHIND.match(each.name) or each.name.lower() in AXES:
        return False
    known = each.missing == 0 or each.rim_only
    return each.cases == cases and known and each.varies and not each.mixed and each.components <= 9


def _location(looked: Looked, whole: Iterable[Field], wishes: Wishes) -> str:
    """Where the first target is; of those that are in both places, the points."""
    names = wishes.targets or tuple(each.name for each in whole if not each.constant)
    at = [each.location for each in looked.fields if each.name == next(iter(names), None)]
    return "cells" if "cells" in at and "points" not in at else "points"


def _surface(looked: Looked, marks: str | None) -> str | None:
    if all(file.beside for file in looked.files):
        return "beside"
    if any(facts["cell_dimension"] < 2 for facts in looked.facts):
        return None
    return marks or "own"


def _derived(looked: Looked, surface: str | None) -> tuple[str, ...]:
    """The distance to the surface, where a mesh is more than that; else which way the surface faces."""
    if surface is None:
        return ()
    if surface == "own" and all(facts["is_surface"] for facts in looked.facts):
        return ("normals",)
    closed = all(
        facts["open_sides"].get("beside" if surface == "beside" else "own") == 0 for facts in looked.facts
    )
    return ("distance" if closed and surface in SURFACE_WORDS else "unsigned_distance",)


def _given(own: Iterable[Field], targets: Sequence[str] | None) -> tuple[str, ...]:
    """Fields whose names speak of what is given. With targets named, all others may depend on them: none."""
    return () if targets is not None else tuple(each.name for each in own if GIVEN.search(each.name.lower()))


def _globals(whole: Iterable[Field], taken: Sequence[str]) -> tuple[str, ...]:
    names = (each.name for each in whole if each.constant and each.components <= 3)
    return tuple(dict.fromkeys(name for name in names if name not in taken))


def _parts(fields: Iterable[Field], axes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The components that count: of a vector in a plane, not the one that is always 0."""
    found = {}
    for each in fields:
        if each.components == 1:
            continue
        names = AXES[: each.components] if each.components <= 3 else tuple(map(str, range(each.components)))
        used = [
            name
            for name, low, high in zip(names, each.low, each.high, strict=True)
            if name in axes or low != 0 or high != 0
        ]
        found[each.name] = tuple(used) if len(axes) == 2 and each.components == 3 else names
    return found


def _names(fields: Iterable[Field]) -> str:
    return ", ".join(dict.fromkeys(each.name for each in fields)) or "none"


def notes_on(each: Field, looked: Looked) -> Iterator[str]:
    """What a user should know before a field is used."""
    if each.cases < len(looked.files):
        yield f"missing in {len(looked.files) - each.cases} cases"
    if each.mixed:
        yield "another number of components in some cases"
    if each.rim_only and each.location == "points":
        yield "on the surface only"
    elif each.missing:
        yield f"NaN at {each.missing} places"
    if not each.varies and not each.mixed:
        yield "the same everywhere"
    elif each.constant and each.location in ("points", "cells"):
        yield "one number a case"
    if len(each.units) > 1:
        yield f"units differ: {', '.join(sorted(each.units))}"


def role_of(each: Field, config: CasesConfig) -> str:
    """What the field is in a configuration."""
    spread = each.location in ("points", "cells")
    if spread and each.name in config.surface_targets:
        return "target on the surface"
    for role, names in (("target", config.targets), ("input", config.inputs)):
        if spread and each.name in names:
            return role
    if each.name in config.globals and (not spread or each.constant):
        return "number of the case"
    return "marks the surface" if each.name == config.surface and spread else ""
