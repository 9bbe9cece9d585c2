"""What a benchmark is: a config, a way to open its splits, a way to make its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from pydantic import PositiveInt
from torch import Tensor

from linearno.core.config import Config
from linearno.core.errors import UserError
from linearno.core.registry import Registry
from linearno.data.sample import FieldSpec, Sample
from linearno.ops.segments import offsets_of, sizes_of


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
    """A split in memory: `coords` (N, X) shared by all samples or (S, N, X) of each; fields (S, N, C).

    With `offsets` (S + 1,) it is packed: meshes of different sizes one after another, coords (T, X) and
    fields (T, C) with T = Σ N_i, sample i the points offsets[i]:offsets[i+1]. `surface` marks the points of a
    surface: bool, shaped as the coordinates without their last axis. Both stay on the host.
    """

    spec: FieldSpec
    coords: Tensor
    inputs: Tensor | None
    targets: Tensor
    offsets: Tensor | None = None
    surface: Tensor | None = None

    def __post_init__(self) -> None:
        if self.surface is not None and self.surface.shape != self.coords.shape[:-1]:
            marks, points = tuple(self.surface.shape), tuple(self.coords.shape[:-1])
            raise UserError(f"surface marks {marks} points, the coordinates are of {points}")
        if self.surface is not None and self.surface.dtype != torch.bool:
            raise UserError(f"surface marks points by true and false, got {self.surface.dtype}; give .bool()")
        if self.offsets is not None:
            if self.spec.grid is not None:
                raise UserError(
                    f"meshes of different sizes have no grid in common; spec.grid={self.spec.grid}"
                )
            sizes_of(self.offsets, len(self.coords))
            counts = {len(part) for part in (self.coords, self.inputs, self.targets) if part is not None}
            if len(counts) > 1:
                raise UserError(f"packed coordinates and fields are of the same points, not {sorted(counts)}")

    @classmethod
    def pack(
        cls, spec: FieldSpec, samples: Sequence[Sample], surface: Sequence[Tensor] | None = None
    ) -> "FieldData":
        """Samples (N_i, ·) on meshes of their own; `surface` marks points (N_i,) of each."""
        if not samples:
            raise UserError("there are no samples to pack")
        for i, sample in enumerate(samples):
            _require_spec(spec, sample, f"sample {i}")
        if surface is not None and [len(marks) for marks in surface] != [len(s.coords) for s in samples]:
            raise UserError("surface marks the points of each sample: give a tensor (points,) for each")
        inputs = [sample.inputs for sample in samples if sample.inputs is not None]
        return cls(
            spec,
            torch.cat([sample.coords for sample in samples]),
            torch.cat(inputs) if inputs else None,
            torch.cat([sample.targets for sample in samples]),
            offsets_of([len(sample.coords) for sample in samples]),
            None if surface is None else torch.cat(list(surface)),
        )

    def __len__(self) -> int:
        return len(self.targets) if self.offsets is None else len(self.offsets) - 1

    @property
    def shared(self) -> bool:
        """Whether all samples have the same points."""
        return self.offsets is None and self.coords.dim() == 2

    def batch(self, index: Tensor | slice, kept: Sequence[Tensor] | None = None) -> Sample:
        """The samples at `index`, stacked: (B, N, ·); of packed data one after another: (1, T, ·).

        With `kept` only those points of each, (K_i,) of its own mesh, as many of all where not packed.
        """
        if self.offsets is not None:
            return self._packed(self._runs(index), kept)
        if kept is not None:
            assert isinstance(index, Tensor)
            return self._some(index, torch.stack(list(kept)))
        targets = self.targets[index]
        coords = self.coords.expand(len(targets), -1, -1) if self.shared else self.coords[index]
        return Sample(coords, None if self.inputs is None else self.inputs[index], targets)

    def everything(self) -> Sample:
        if self.offsets is None:
            return self.batch(slice(None))
        inputs = None if self.inputs is None else self.inputs[None]
        return Sample(self.coords[None], inputs, self.targets[None], segments=self.offsets)

    def subset(self, index: Tensor) -> "FieldData":
        part, surface = self.batch(index), self.surface
        if self.offsets is not None:
            inputs = None if part.inputs is None else part.inputs[0]
            if surface is not None:
                surface = torch.cat([surface[run] for run in self._runs(index)])
            return FieldData(self.spec, part.coords[0], inputs, part.targets[0], part.segments, surface)
        if self.shared:
            return replace(self, inputs=part.inputs, targets=part.targets)
        surface = None if surface is None else surface[index.cpu()]
        return FieldData(self.spec, *part[:3], surface=surface)

    def to(self, device: torch.device) -> "FieldData":
        inputs = None if self.inputs is None else self.inputs.to(device)
        return replace(self, coords=self.coords.to(device), inputs=inputs, targets=self.targets.to(device))

    def _runs(self, index: Tensor | slice) -> list[slice]:
        """The points of each packed sample at `index`, which is read on the host."""
        assert self.offsets is not None
        offsets = self.offsets.tolist()
        chosen = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index].tolist()
        return [slice(offsets[i], offsets[i + 1]) for i in chosen]

    def _packed(self, runs: list[slice], kept: Sequence[Tensor] | None) -> Sample:
        sizes = [run.stop - run.start for run in runs]
        rows: Tensor | None = None
        if kept is not None:
            sizes = [len(points) for points in kept]
            rows = torch.cat([run.start + points for run, points in zip(runs, kept, strict=True)])
            rows = rows.to(self.coords.device, non_blocking=True)

        def take(part: Tensor) -> Tensor:
            return (torch.cat([part[run] for run in runs]) if rows is None else part[rows])[None]

        inputs = None if self.inputs is None else take(self.inputs)
        return Sample(take(self.coords), inputs, take(self.targets), segments=offsets_of(sizes))

    def _some(self, index: Tensor, kept: Tensor) -> Sample:
        device = self.coords.device
        rows, kept = index.to(device, non_blocking=True)[:, None], kept.to(device, non_blocking=True)
        return Sample(
            self.coords[kept] if self.shared else self.coords[rows, kept],
            None if self.inputs is None else self.inputs[rows, kept],
            self.targets[rows, kept],
        )


def _require_spec(spec: FieldSpec, sample: Sample, name: str) -> None:
    """One mesh with fields at its points, in the channels that `spec` names."""
    parts = {"coords": sample.coords, "inputs": sample.inputs, "outputs": sample.targets}
    for part, values in parts.items():
        channels = len(getattr(spec, part))
        shape = (len(sample.coords), channels)
        if (values is None and channels) or (values is not None and tuple(values.shape) != shape):
            found = "nothing" if values is None else tuple(values.shape)
            raise UserError(f"{name}: {part} are {found}, expected (points, channels) = {shape}")


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
    slower: dict[str, float] | None = None  # scheme → times as many, where it has a slower one
    growth: float = 2.0  # the power of the resolution by which they grow, as measured


DATASETS: Registry[Benchmark] = Registry("dataset")
