"""Input and output tensors of an exported model: one for each field, under the name of the field.

Axes: `batch`, `points`, `observations` stand for any size, a number for a fixed one.
"""

import re
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from math import prod
from typing import Any, Literal, NamedTuple

from linearno.inference.bundle import Bundle
from linearno.nn.protocol import completes, fixed_grid, fixed_points, needs_of, unsupported
from linearno.training import Timed

Kind = Literal["coords", "input", "time", "points", "output"]


class TensorSpec(NamedTuple):
    """One input or output tensor.

    Args:
        kind: what it contains.
        name: a Python identifier.
        fields: names of the fields in it.
        axes: size of each axis, or its name if any size is allowed.
    """

    kind: Kind
    name: str
    fields: tuple[str, ...]
    axes: tuple[str | int, ...]

    @property
    def dynamic_axes(self) -> dict[int, str]:
        """Names of the axes of any size, by position."""
        return {position: axis for position, axis in enumerate(self.axes) if isinstance(axis, str)}

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with these sizes of the dynamic axes."""
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in self.axes)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.axes))})"

    def card(self, units: Mapping[str, str]) -> dict[str, Any]:
        """Its description in the metadata of a file."""
        return self._asdict() | {"units": [units.get(field, "dimensionless") for field in self.fields]}


def io_signature(bundle: Bundle) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Input and output tensors of one call of a bundle's model.

    Coordinates are no input of a model on a fixed grid or fixed points that all samples share.
    """
    extra = [need for need in needs_of(bundle.model) or () if need in bundle.spec.aux or need == "surface"]
    if extra:
        raise unsupported(bundle.model, f"export, since it needs {extra[0]}")
    spec, output_names, grid = bundle.call_spec, _output_names(bundle), fixed_grid(bundle.model)
    points = prod(grid) if grid else fixed_points(bundle.model)
    reconstructs = completes(bundle.model)
    input_axis = points or ("observations" if reconstructs else "points")
    output_axis = "points" if reconstructs else input_axis
    names = iter(_identifiers([*spec.inputs, *output_names]))
    inputs = [TensorSpec("input", next(names), (field,), ("batch", input_axis)) for field in spec.inputs]
    outputs = [TensorSpec("output", next(names), (field,), ("batch", output_axis)) for field in output_names]
    if not (points and inputs and bundle.coords is not None):
        coords = TensorSpec("coords", "coords", spec.coords, ("batch", input_axis, len(spec.coords)))
        inputs.insert(0, coords)
    if "time" in (needs_of(bundle.model) or ()):
        inputs.append(TensorSpec("time", "time", ("time",), ("batch", 1)))
    if reconstructs:
        inputs.append(TensorSpec("points", "points", spec.coords, ("batch", "points", len(spec.coords))))
    return inputs, outputs


def _output_names(bundle: Bundle) -> tuple[str, ...]:
    """Output fields of one call; for a time-conditioned model without the frame number: x for x0."""
    names = bundle.call_spec.outputs
    bare = tuple(re.sub(r"\W*\d+$", "", name) for name in names)
    return bare if isinstance(bundle.task, Timed) and all(bare) and len(set(bare)) == len(names) else names


def _identifiers(fields: Iterable[str]) -> list[str]:
    """A unique Python identifier for each field."""
    names: list[str] = []
    for field in fields:
        name = re.sub(r"\W+", "_", field)
        name = name if name.isidentifier() else f"_{name}"
        while name in ("coords", "time", "points", *names) or iskeyword(name):
            name += "_"
        names.append(name)
    return names
