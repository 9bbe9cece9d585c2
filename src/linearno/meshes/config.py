"""What a `dataset.yaml` says: which fields of a user's own simulations are given, and which are learned."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, model_validator

from linearno.core.config import read_yaml
from linearno.data.benchmark import DataConfig
from linearno.data.sample import FieldSpec
from linearno.meshes.discover import Share, count_of

Axis = Literal["x", "y", "z"]
Derived = Literal["distance", "unsigned_distance", "normals", "curvature"]
Fault = Literal["degenerate", "duplicates"]
AXES = ("x", "y", "z")
EXAMPLE = 100  # cases that `linearno data generate cases` makes unless it is told how many


def _a_share(share: Share) -> Share:
    if isinstance(share, tuple) and share:
        return share
    if isinstance(share, tuple) or not (share >= 1 if isinstance(share, int) else 0 < share <= 1):
        raise ValueError(
            f"expected a fraction up to 1.0, a number of cases, or a list of patterns; got {share!r}"
        )
    return share


def _patterns(share: Any) -> Any:
    return (share,) if isinstance(share, str) else share


ShareOf = Annotated[Share, BeforeValidator(_patterns), AfterValidator(_a_share)]


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
    # a fraction, a number of cases, or patterns of names
    test: ShareOf = 0.2  # type: ignore[assignment]  # where other sets have a number
    train: ShareOf = 1.0  # type: ignore[assignment]  # the same, of those that are left
    seed: NonNegativeInt = 0  # of the order in which cases are drawn for both
    tolerate: tuple[Fault, ...] = ()
    skip_bad: bool = False  # leave out cases that cannot be used, and say which

    @property
    def sizes(self) -> dict[str, int]:
        """Of an example that is still to be made."""
        sizes, left = {}, EXAMPLE
        for split, share in (("test", self.test), ("train", self.train)):
            sizes[split] = count_of(0.5 if isinstance(share, tuple) else share, left)
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
        self.spec  # noqa: B018 (an error now if two channels have one name)
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
        return FieldSpec.make(
            {
                "coords": self.coords,
                "inputs": [channel for field in given for channel in fields[field]],
                "outputs": [channel for field in self.targets for channel in fields[field]],
                "units": units,
                "standardised": ("coords", "inputs", "outputs"),
                "vectors": {field: channels for field, channels in fields.items() if channels != (field,)},
                "masked_outputs": [channel for field in self.surface_targets for channel in fields[field]],
            }
        )


def read_dataset(path: Path) -> CasesConfig:
    """A `dataset.yaml`; its folder is seen from where the file lies."""
    config = read_yaml(path, CasesConfig)
    return config.model_copy(update={"root": Path(os.path.normpath(path.parent / config.root))})
