"""Configuration of a data set of simulation files, read from a `dataset.yaml`."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from linearno.core.config import Config, read_yaml
from linearno.core.errors import UserError
from linearno.data.benchmark import DataConfig
from linearno.data.sample import FieldSpec
from linearno.meshes.discover import Frames, Share, count_of
from linearno.meshes.expressions import parse
from linearno.meshes.reader.geometry import AXES
from linearno.meshes.simulations import ALL_FILES

Axis = Literal["x", "y", "z"]
Derived = Literal[
    "distance", "unsigned_distance", "log_distance", "normals", "curvature", "local_coords", "fourier"
]
VIEW_SCALES = 4  # half the width of the view around a small body, over the scale of positions
Limits = tuple[float, float]
POSITIONAL = ("local_coords", "fourier")  # derived from positions, without a surface
Fault = Literal["degenerate", "duplicates"]
EXAMPLE_CASES = 100  # default number of `linearno data generate cases`


def _valid_share(share: Share) -> Share:
    if isinstance(share, tuple) and share:
        return share
    if isinstance(share, tuple) or not (share >= 1 if isinstance(share, int) else 0 < share <= 1):
        raise ValueError(
            f"expected a fraction up to 1.0, a number of cases, or a list of patterns; got {share!r}"
        )
    return share


def _one_pattern_as_list(share: Any) -> Any:
    return (share,) if isinstance(share, str) else share


ShareField = Annotated[Share, BeforeValidator(_one_pattern_as_list), AfterValidator(_valid_share)]


class PositionConfig(Config):
    """Transform of positions in a large domain around a small body.

    Args:
        center: of the points, in space.
        scale: length below which distances are resolved linearly.
        frequencies: number of octaves of the Fourier features.
    """

    center: tuple[float, float, float] = (0.0, 0.0, 0.0)
    scale: PositiveFloat
    frequencies: PositiveInt = 4


class Quantity(Config):
    """A number of a case that is computed from a target.

    Args:
        force: target that is integrated over `patch` with its normal out of the mesh, along `direction`.
        average: target that is averaged over `patch`.
        probe: target whose value at the mesh point nearest to `point` is taken.
        patch: patches, separated by commas.
        direction: of the force, in the coordinates of the data or in space.
        point: of the probe, likewise.
        factor: by which the result is multiplied, such as a density or 1 / (½ρU²A).
    """

    force: str | None = None
    average: str | None = None
    probe: str | None = None
    patch: str = ""
    direction: tuple[float, ...] = ()
    point: tuple[float, ...] = ()
    factor: float = 1.0

    @model_validator(mode="after")
    def _is_one_kind(self) -> "Quantity":
        given = [name for name in ("force", "average", "probe") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("expected one of force, average and probe, with the name of a target")
        needed = {"force": ("patch", "direction"), "average": ("patch",), "probe": ("point",)}[given[0]]
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"{given[0]} needs {missing[0]}")
        return self

    @property
    def kind(self) -> str:
        return "force" if self.force is not None else "average" if self.average is not None else "probe"

    @property
    def channel(self) -> str:
        """Name of the output channel."""
        return self.force or self.average or self.probe or ""


class MeshFields(Config):
    """Inputs and targets of a model in a mesh file.

    Args:
        location: location of the targets.
        coords: axes along which the meshes have an extent.
        targets: fields to predict.
        surface_targets: targets that are known on the surface only.
        inputs: fields that are inputs.
        globals: numbers of the whole case that are inputs.
        components: components to use of vectors and tensors, by field.
        surface: `own`, `beside` (the .stl file of the same name), or a field that marks it.
        derived: inputs derived from the surface.
        units: unit of each field or coordinate.
        tolerate: faults of a mesh that are not errors.
        position: transform of positions for `local_coords`, `fourier` and `log_distance`.
        quantities: integral quantities that are evaluated: forces on patches, averages, probes.
        expressions: globals computed from OpenFOAM dictionaries of the case or other globals.
    """

    location: Literal["points", "cells"] = "points"
    coords: tuple[Axis, ...]
    targets: tuple[str, ...]
    surface_targets: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    globals: tuple[str, ...] = ()
    components: dict[str, tuple[str, ...]] = Field(default={})
    surface: str | None = None
    derived: tuple[Derived, ...] = ()
    units: dict[str, str] = Field(default={})
    tolerate: tuple[Fault, ...] = ()
    position: PositionConfig | None = None
    quantities: dict[str, Quantity] = Field(default={})
    expressions: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _fields_fit(self) -> "MeshFields":
        if not self.targets:
            raise ValueError("targets: name one field or more to predict")
        if self.surface is None and (needing := [name for name in self.derived if name not in POSITIONAL]):
            raise ValueError(f"derived={needing} needs a surface: set surface, for example to own")
        if self.position is None and {*self.derived} & {*POSITIONAL, "log_distance"}:
            raise ValueError("derived: local_coords, fourier and log_distance need position: {scale: LENGTH}")
        if extra := set(self.surface_targets) - set(self.targets):
            raise ValueError(
                f"surface_targets: {extra.pop()!r} is not one of the targets {list(self.targets)}"
            )
        if self.surface_targets and self.surface is None:
            raise ValueError("surface_targets need a surface: set surface, for example to own")
        if both := set(self.targets) & {*self.inputs, *self.globals}:
            raise ValueError(f"{both.pop()!r} is a target and an input; choose one of them")
        for name, text in self.expressions.items():
            parse(name, text)
            if name not in self.globals:
                raise ValueError(f"expressions.{name}: {name} is none of the globals {list(self.globals)}")
        if len(self.coords) < 2 or len(set(self.coords)) < len(self.coords):
            raise ValueError(f"coords: expected two or three different axes, got {list(self.coords)}")
        outputs = [channel for name in self.targets for channel in self.channels(name)]
        for name, quantity in self.quantities.items():
            if quantity.channel not in outputs:
                raise ValueError(f"quantities.{name}: {quantity.channel!r} is none of the outputs {outputs}")
            for part in (quantity.direction, quantity.point):
                if part and len(part) not in (3, len(self.coords)):
                    raise ValueError(
                        f"quantities.{name}: expected {len(self.coords)} numbers, got {list(part)}"
                    )
        self.spec  # noqa: B018 (raises if two channels have the same name)
        return self

    def channels(self, field: str) -> tuple[str, ...]:
        """Names of a field's channels."""
        if field == "fourier" and self.position is not None:
            count = 2 * self.position.frequencies
            return tuple(f"{field}_{axis}{k}" for axis in self.coords for k in range(count))
        along_axes = field in ("normals", "local_coords")
        parts = self.coords if along_axes else self.components.get(field, ())
        return tuple(f"{field}_{part}" for part in parts) or (field,)

    @property
    def spec(self) -> FieldSpec:
        """Specification of the input and output channels."""
        inputs = (*self.inputs, *self.derived, *self.globals)
        fields = {field: self.channels(field) for field in (*inputs, *self.targets)}
        units = {
            channel: self.units[field]
            for field, channels in ({axis: (axis,) for axis in self.coords} | fields).items()
            for channel in channels
            if field in self.units
        }
        return FieldSpec.make(
            {
                "coords": self.coords,
                "inputs": [channel for field in inputs for channel in fields[field]],
                "outputs": [channel for field in self.targets for channel in fields[field]],
                "units": units,
                "standardised": ("coords", "inputs", "outputs"),
                "vectors": {
                    field: channels
                    for field, channels in fields.items()
                    if channels != (field,) and field not in POSITIONAL
                },
                "masked_outputs": [channel for field in self.surface_targets for channel in fields[field]],
                "plot_extent": self._view(),
            }
        )

    def _view(self) -> tuple[Limits, ...] | None:
        """View of a small body in a large domain, for figures."""
        if self.position is None or "local_coords" not in self.derived or len(self.coords) != 2:
            return None
        center, size = self.position.center, VIEW_SCALES * self.position.scale
        return tuple((center[k] - size, center[k] + size) for k in map(AXES.index, self.coords))

    @classmethod
    def of(cls, spec: FieldSpec) -> "MeshFields":
        """Fields of a model that was trained on arrays: one field per channel, of the same name."""
        if len(spec.coords) not in (2, 3):
            raise UserError(f"this model has the coordinates {', '.join(spec.coords)}: not those of a mesh")
        values = {"coords": AXES[: len(spec.coords)], "targets": spec.outputs, "inputs": spec.inputs}
        return cls.make(values | {"units": spec.units})


class CasesConfig(MeshFields, DataConfig):
    """Configuration of a data set: `MeshFields` and the files; written by `linearno init`.

    Args:
        root: folder of the cases.
        files: pattern of the case files in `root`; by default every simulation is one case.
        parameters: table of the globals of the cases; by default one in `root` is looked for.
        frames: "last" time of each simulation, or "all" times, as cases with the global `time`.
        test: fraction or number of cases, or patterns of their names.
        train: the same, of the cases that are not test cases.
        seed: seed of the random split.
        skip_bad: skip unusable cases, and log them.
        cases: names of the simulations that are used, as `linearno init` found them; empty: all in `root`.
    """

    name: Literal["cases"] = "cases"
    root: Path = Path("cases")
    files: str = ALL_FILES
    parameters: Path | None = None
    frames: Frames = "last"
    coords: tuple[Axis, ...] = ("x", "y")
    targets: tuple[str, ...] = ("displacement", "stress")
    components: dict[str, tuple[str, ...]] = Field(default={"displacement": ("x", "y")})
    test: ShareField = 0.2  # type: ignore[assignment]  # a number in other data sets
    train: ShareField = 1.0  # type: ignore[assignment]
    seed: NonNegativeInt = 0
    skip_bad: bool = False
    cases: tuple[str, ...] = ()

    @property
    def mesh_fields(self) -> MeshFields:
        """The part of the configuration that is stored with a model."""
        return MeshFields.make(self.model_dump(include=set(MeshFields.model_fields)))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of example cases of each split that `generate` writes."""
        sizes, remaining = {}, EXAMPLE_CASES
        for split, share in (("test", self.test), ("train", self.train)):
            sizes[split] = count_of(0.5 if isinstance(share, tuple) else share, remaining)
            remaining -= sizes[split]
        return sizes


def read_dataset(path: Path) -> CasesConfig:
    """Read a `dataset.yaml`; its `root` and `parameters` are relative to the file."""
    config = read_yaml(path, CasesConfig)
    paths = {"root": config.root, "parameters": config.parameters}
    return config.model_copy(
        update={
            name: Path(os.path.normpath(path.parent / value))
            for name, value in paths.items()
            if value is not None
        }
    )
