"""What goes into an exported model and what comes out: a tensor for each field, under its name.

Axes: `batch`, `points`, `observations`; a word stands for any size, a number for the only one.
"""

import re
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from math import prod
from typing import Any, Literal, NamedTuple

from linearno.inference.bundle import Bundle
from linearno.nn.protocol import completes, fixed_grid, needs_of, unsupported
from linearno.training import Timed

Kind = Literal["coords", "input", "time", "points", "output"]


class Port(NamedTuple):
    """One tensor: what it is, its name, the fields that it holds, its axes."""

    kind: Kind
    name: str
    fields: tuple[str, ...]
    axes: tuple[str | int, ...]

    @property
    def free(self) -> dict[int, str]:
        """The axes of any size, by their place."""
        return {place: axis for place, axis in enumerate(self.axes) if isinstance(axis, str)}

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in self.axes)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.axes))})"

    def card(self, units: Mapping[str, str]) -> dict[str, Any]:
        return self._asdict() | {"units": [units.get(field, "dimensionless") for field in self.fields]}


def ports_of(bundle: Bundle) -> tuple[list[Port], list[Port]]:
    """What one call of a bundle's model takes and gives.

    Coordinates are left out where the model is tied to a grid whose points all samples share.
    """
    own = [need for need in needs_of(bundle.model) or () if need in bundle.spec.aux or need == "surface"]
    if own:
        raise unsupported(bundle.model, f"export, since it needs {own[0]}")
    asked, outputs, grid = bundle.call_spec, _outputs(bundle), fixed_grid(bundle.model)
    crossing = completes(bundle.model)
    here = prod(grid) if grid else "observations" if crossing else "points"
    there = "points" if crossing else here
    names = iter(_identifiers([*asked.inputs, *outputs]))
    asks = [Port("input", next(names), (field,), ("batch", here)) for field in asked.inputs]
    gives = [Port("output", next(names), (field,), ("batch", there)) for field in outputs]
    places = Port("coords", "coords", asked.coords, ("batch", here, len(asked.coords)))
    if not (grid and asks and bundle.coords is not None):
        asks.insert(0, places)
    if "time" in (needs_of(bundle.model) or ()):
        asks.append(Port("time", "time", ("time",), ("batch", 1)))
    if crossing:
        asks.append(Port("points", "points", asked.coords, ("batch", "points", len(asked.coords))))
    return asks, gives


def _outputs(bundle: Bundle) -> tuple[str, ...]:
    """The fields of one call; those of a frame at any time without its number: x of x0."""
    names = bundle.call_spec.outputs
    bare = tuple(re.sub(r"\W*\d+$", "", name) for name in names)
    return bare if isinstance(bundle.task, Timed) and all(bare) and len(set(bare)) == len(names) else names


def _identifiers(fields: Iterable[str]) -> list[str]:
    """Each field's name as a word of Python, unlike all others."""
    names: list[str] = []
    for field in fields:
        name = re.sub(r"\W+", "_", field)
        name = name if name.isidentifier() else f"_{name}"
        while name in ("coords", "time", "points", *names) or iskeyword(name):
            name += "_"
        names.append(name)
    return names
