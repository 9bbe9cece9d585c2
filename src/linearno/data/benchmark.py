"""What a benchmark is: a config, a way to open its splits, a way to make its files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.config import Config
from linearno.core.registry import Registry
from linearno.data.sample import FieldSpec, Sample


class DataConfig(Config):
    """Which data, from where, and how much of it."""

    name: str
    root: Path
    train: PositiveInt
    test: PositiveInt

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each split that the benchmark has."""
        return {"train": self.train, "test": self.test}


@dataclass(frozen=True)
class FieldData:
    """A split in memory: `coords` (N, X) shared by all samples or (S, N, X) of each; fields (S, N, C)."""

    spec: FieldSpec
    coords: Tensor
    inputs: Tensor | None
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, index: Tensor | slice) -> Sample:
        """The samples at `index`, stacked: (B, N, ·)."""
        targets = self.targets[index]
        coords = self.coords.expand(len(targets), -1, -1) if self.coords.dim() == 2 else self.coords[index]
        return Sample(coords, None if self.inputs is None else self.inputs[index], targets)

    def everything(self) -> Sample:
        return self.batch(slice(None))

    def subset(self, index: Tensor) -> "FieldData":
        part = self.batch(index)
        coords = self.coords if self.coords.dim() == 2 else part.coords
        return FieldData(self.spec, coords, part.inputs, part.targets)

    def to(self, device: torch.device) -> "FieldData":
        inputs = None if self.inputs is None else self.inputs.to(device)
        return FieldData(self.spec, self.coords.to(device), inputs, self.targets.to(device))


class Layout(NamedTuple):
    """What the samples of a set look like, and the points (N, X) that they share, if they do."""

    spec: FieldSpec
    coords: Tensor | None = None

    def filled(self, inputs: Tensor | None, targets: Tensor) -> FieldData:
        """Samples (S, N, C) at the points that they share."""
        assert self.coords is not None
        return FieldData(self.spec, self.coords, inputs, targets)


class Splits(NamedTuple):
    train: FieldData
    test: FieldData
    source: str  # where the numbers come from, in words; stands beside every result


@runtime_checkable
class Generate(Protocol):
    """Make a benchmark's files with its solver; `tick(n)` is called when n more samples are finished."""

    def __call__(
        self,
        root: Path,
        *,
        sizes: dict[str, int],
        resolution: int,
        seed: int,
        workers: int,
        tick: Callable[[int], None],
        device: str = "cpu",
        scheme: str | None = None,
    ) -> None: ...


@dataclass(frozen=True)
class Benchmark:
    """An entry of the registry. `verify` returns what is wrong, a line each; nothing when all is well."""

    summary: str
    config: type[DataConfig]
    open: Callable[[Any], Splits]  # takes what `config` makes
    verify: Callable[[Path], list[str]]
    generate: Generate | None = None
    resolution: int | None = None  # default of `generate`
    published: tuple[str, ...] = ()  # names of the published files
    outputs: tuple[str, ...] = ()  # stored fields that may be rounded to be carried
    channels: tuple[str, ...] = ()  # those of them whose first axis after the samples' holds several fields
    layout: Callable[[Any], Layout] | None = None  # of the published files, which need not be here
    seconds: float = 0.0  # about, that a core needs to make a sample of that resolution


DATASETS: Registry[Benchmark] = Registry("dataset")
