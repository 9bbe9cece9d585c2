"""A data split in memory, and batches of it.

Axes: S samples, B batch, N points, T points of all packed meshes, X coordinates, C channels, E edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from linearno.core.errors import UserError
from linearno.data.sample import Batch, FieldSpec, is_edges
from linearno.ops.ragged import offsets_of, sizes_of


@dataclass(frozen=True)
class FieldData:
    """A data split in memory: `coords` (N, X) shared by all samples or (S, N, X); fields (S, N, C).

    With `offsets` (S + 1,) the split is packed: meshes of different sizes are concatenated to coords (T, X)
    and fields (T, C) with T = Σ N_i; sample i has the points offsets[i]:offsets[i+1].

    Args:
        spec: names, units and kinds of all fields.
        coords: points.
        inputs: input channels at the points, if there are any.
        targets: output channels at the points.
        offsets: first point of each packed mesh, and T, on the host.
        surface: boolean mask of the points on a surface, shaped as the coordinates without their last axis.
        aux: auxiliary fields by name, of the kinds in `spec.aux`: at points, shaped like the coordinates or
            the targets except for the last axis; per sample (S, ·); or edges (2, E), pairs of point indices
            within a sample.
        edge_offsets: offsets (S + 1,) of the edges of each sample, by name, on the host; edges without
            offsets are shared by all samples.
        groups: number of the group of each sample, such as its simulation, if samples of a group are not to
            be divided between training and validation; a subset has none.
    """

    spec: FieldSpec
    coords: Tensor
    inputs: Tensor | None
    targets: Tensor
    offsets: Tensor | None = None
    surface: Tensor | None = None
    aux: Mapping[str, Tensor] = field(default_factory=dict)
    edge_offsets: Mapping[str, Tensor] = field(default_factory=dict)
    groups: tuple[int, ...] = ()

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
        self._require_aux()

    def _require_aux(self) -> None:
        if self.aux.keys() != self.spec.aux.keys():
            odd = sorted(self.aux.keys() ^ self.spec.aux.keys())
            raise UserError(
                f"spec.aux declares {list(self.spec.aux)}, the data hold {list(self.aux)}: {odd[0]!r}"
            )
        for name, values in self.aux.items():
            kind, shape = self.spec.aux[name], tuple(values.shape)
            points = {tuple(self.coords.shape[:-1]), tuple(self.targets.shape[:-1])}
            right = {
                "point": shape[:-1] in points and not is_edges(values),
                "sample": len(shape) == 2 and shape[0] == len(self) and not is_edges(values),
                "edge": len(shape) == 2 and shape[0] == 2 and is_edges(values),
            }[kind]
            if not right:
                raise UserError(f"aux {name!r} is of {kind}s, but has shape {shape} and type {values.dtype}")
            if kind == "edge" and name not in self.edge_offsets and self.offsets is not None:
                raise UserError(f"aux {name!r}: meshes of different sizes have edges each; give edge_offsets")

    def check(self) -> None:
        """Raise if the data do not match `spec`: channels, points, samples, grid, edges."""
        packed, spec = self.offsets is not None, self.spec
        points = self.coords.shape[-2] if self.coords.dim() > 1 else 0
        parts = {"coords": self.coords, "inputs": self.inputs, "outputs": self.targets}
        for part, values in parts.items():
            channels = len(getattr(spec, part))
            if values is None:
                if channels:
                    raise UserError(f"there are no {part}, but spec.{part} names {channels}")
                continue
            dims = (2,) if packed else (2, 3) if part == "coords" else (3,)
            if values.dim() not in dims or values.shape[-1] != channels or values.shape[-2] != points:
                expected = (points, channels) if packed else (len(self), points, channels)
                raise UserError(
                    f"{part} have shape {tuple(values.shape)}, expected "
                    f"({'' if packed else 'samples, '}points, channels) = {expected}, as spec.{part} says"
                )
            if values.dim() == 3 and len(values) != len(self):
                raise UserError(f"{part} are of {len(values)} samples, the targets of {len(self)}")
            if not values.is_floating_point():
                raise UserError(f"{part} are {values.dtype}, expected real numbers of floating point")
        if spec.grid is not None and spec.points != points:
            raise UserError(f"spec.grid={spec.grid} has {spec.points} points, the data have {points}")
        for name, kind in spec.aux.items():
            if kind == "edge":
                self.require_edges(name, points)

    def require_edges(self, name: str, points: int) -> None:
        """Raise if edges have point indices outside their sample."""
        edges = self.aux[name]
        if not edges.numel():
            return
        limit = torch.full_like(edges[0], points)
        if name in self.edge_offsets:
            counts = self.edge_offsets[name].diff()
            if len(counts) != len(self) or int(counts.sum()) != edges.shape[1]:
                raise UserError(f"edge_offsets of {name!r} do not run over the {edges.shape[1]} edges")
            sizes = torch.full((len(self),), points) if self.offsets is None else self.offsets.diff()
            limit = sizes.repeat_interleave(counts).to(edges.device)
        if int(edges.min()) < 0 or not (edges < limit).all():
            raise UserError(f"{name!r} name points that the samples do not have; count from 0 in each sample")

    @classmethod
    def pack(
        cls, spec: FieldSpec, samples: Sequence[Batch], surface: Sequence[Tensor] | None = None
    ) -> "FieldData":
        """Pack samples on different meshes.

        Args:
            spec: names, units and kinds of all fields.
            samples: single samples (N_i, ·), with their `aux`.
            surface: masks (N_i,) of the points on a surface.
        """
        if not samples:
            raise UserError("there are no samples to pack")
        for i, sample in enumerate(samples):
            _require_spec(spec, sample, f"sample {i}")
        if surface is not None and [len(marks) for marks in surface] != [len(s.coords) for s in samples]:
            raise UserError("surface marks the points of each sample: give a tensor (points,) for each")
        inputs = [sample.inputs for sample in samples if sample.inputs is not None]
        join = {"point": torch.cat, "sample": torch.stack, "edge": lambda parts: torch.cat(parts, dim=1)}
        return cls(
            spec,
            torch.cat([sample.coords for sample in samples]),
            torch.cat(inputs) if inputs else None,
            torch.cat([sample.targets for sample in samples]),
            offsets_of([len(sample.coords) for sample in samples]),
            None if surface is None else torch.cat(list(surface)),
            {name: join[kind]([s.aux[name] for s in samples]) for name, kind in spec.aux.items()},
            {
                name: offsets_of([s.aux[name].shape[1] for s in samples])
                for name, kind in spec.aux.items()
                if kind == "edge"
            },
        )

    def __len__(self) -> int:
        return len(self.targets) if self.offsets is None else len(self.offsets) - 1

    @property
    def shared(self) -> bool:
        """Whether all samples have the same points."""
        return self.offsets is None and self.coords.dim() == 2

    @property
    def shared_aux(self) -> dict[str, Tensor]:
        """Auxiliary fields shared by all samples, if the points are shared."""
        if not self.shared:
            return {}
        return {
            name: self.aux[name]
            for name, kind in self.spec.aux.items()
            if (kind == "point" and self.aux[name].dim() == 2)
            or (kind == "edge" and name not in self.edge_offsets)
        }

    @property
    def ragged(self) -> bool:
        """Whether samples differ in their number of points or edges; batches are then built on the host."""
        return self.offsets is not None or bool(self.edge_offsets)

    def batch(self, index: Tensor | slice, kept: Sequence[Tensor] | None = None) -> Batch:
        """Batch of the samples at `index`: stacked (B, N, ·), or packed (1, T, ·) for packed data.

        Args:
            index: indices of the samples.
            kept: indices (K_i,) of the points to keep of each sample, of equal number unless packed; the
                batch then has no edges.
        """
        if self.offsets is not None:
            return self._packed(index, kept)
        if kept is not None:
            assert isinstance(index, Tensor)
            return self._select_points(index, torch.stack(list(kept)))
        targets = self.targets[index]

        def take(part: Tensor, dims: int) -> Tensor:
            """Rows of an array at `index`; an array shared by all samples (of `dims` axes) is expanded."""
            return part.expand(len(targets), *part.shape) if part.dim() == dims else part[index]

        return Batch(
            take(self.coords, 2),
            None if self.inputs is None else self.inputs[index],
            targets,
            surface=None if self.surface is None else take(self.surface, 1),
            aux={
                name: self._edges(name, part, index, tuple(targets.shape[:2]))
                if self.spec.aux[name] == "edge"
                else take(part, 2 if self.spec.aux[name] == "point" else 0)
                for name, part in self.aux.items()
            },
        )

    def everything(self) -> Batch:
        """All samples as one batch."""
        return self.batch(slice(None))

    def subset(self, index: Tensor) -> "FieldData":
        """Data of the samples at `index`, in that order."""
        part = self.batch(index)
        aux, edge_offsets = {}, {}
        for name, kind in self.spec.aux.items():
            shared = self.offsets is None and self.aux[name].dim() == 2
            if kind == "edge" and name in self.edge_offsets:
                aux[name], edge_offsets[name] = _concatenate_edges(
                    self.aux[name], self.edge_offsets[name], index
                )
            elif kind == "edge" or (kind == "point" and shared):
                aux[name] = self.aux[name]
            else:
                aux[name] = part.aux[name] if kind == "sample" or self.offsets is None else part.aux[name][0]
        surface = None if part.surface is None else part.surface.cpu()
        if self.offsets is None:
            coords = self.coords if self.shared else part.coords
            surface = self.surface if self.shared else surface
            return FieldData(self.spec, coords, part.inputs, part.targets, None, surface, aux, edge_offsets)
        inputs = None if part.inputs is None else part.inputs[0]
        surface = None if surface is None else surface[0]
        return FieldData(
            self.spec, part.coords[0], inputs, part.targets[0], part.segments, surface, aux, edge_offsets
        )

    def to(self, device: torch.device) -> "FieldData":
        """The data on `device`; offsets stay on the host."""
        return replace(
            self,
            coords=self.coords.to(device),
            inputs=None if self.inputs is None else self.inputs.to(device),
            targets=self.targets.to(device),
            surface=None if self.surface is None else self.surface.to(device),
            aux={name: part.to(device) for name, part in self.aux.items()},
        )

    def _packed(self, index: Tensor | slice, kept: Sequence[Tensor] | None) -> Batch:
        assert self.offsets is not None
        chosen, offsets = _sample_indices(index, len(self)), self.offsets.tolist()
        ranges = [slice(offsets[i], offsets[i + 1]) for i in chosen]
        sizes = [points.stop - points.start for points in ranges]
        rows: Tensor | None = None
        if kept is not None:
            sizes = [len(points) for points in kept]
            rows = torch.cat([mesh.start + points for mesh, points in zip(ranges, kept, strict=True)])
            rows = rows.to(self.coords.device, non_blocking=True)
        all_samples = isinstance(index, slice) and index == slice(None)

        def take(part: Tensor) -> Tensor:
            if rows is None:
                return (part if all_samples else torch.cat([part[points] for points in ranges]))[None]
            return part[rows.to(part.device)][None]

        aux = {}
        for name, part in self.aux.items():
            kind = self.spec.aux[name]
            if kind == "edge" and rows is None:
                aux[name] = _offset_edges(part, self.edge_offsets[name], chosen, sizes)
            elif kind != "edge":
                aux[name] = take(part) if kind == "point" else part[torch.tensor(chosen, device=part.device)]
        inputs = None if self.inputs is None else take(self.inputs)
        surface = None if self.surface is None else take(self.surface)
        return Batch(
            take(self.coords),
            inputs,
            take(self.targets),
            segments=offsets_of(sizes),
            surface=surface,
            aux=aux,
        )

    def _select_points(self, index: Tensor, kept: Tensor) -> Batch:
        device = self.coords.device
        rows, kept = index.to(device, non_blocking=True)[:, None], kept.to(device, non_blocking=True)

        def take(part: Tensor, dims: int) -> Tensor:
            points, samples = kept.to(part.device), rows.to(part.device)
            return part[points] if part.dim() == dims else part[samples, points]

        return Batch(
            take(self.coords, 2),
            None if self.inputs is None else self.inputs[rows, kept],
            self.targets[rows, kept],
            surface=None if self.surface is None else take(self.surface, 1),
            aux={
                name: take(part, 2) if self.spec.aux[name] == "point" else part[rows[:, 0]]
                for name, part in self.aux.items()
                if self.spec.aux[name] != "edge"
            },
        )

    def _edges(self, name: str, edges: Tensor, index: Tensor | slice, shape: tuple[int, ...]) -> Tensor:
        """Edges of the samples at `index`, as pairs of point indices in the flattened batch (B·N)."""
        samples, points = shape
        if name in self.edge_offsets:
            chosen = _sample_indices(index, len(self))
            return _offset_edges(edges, self.edge_offsets[name], chosen, [points] * samples)
        starts = torch.arange(samples, device=edges.device) * points
        return (edges[:, None] + starts[:, None]).flatten(1)


def _sample_indices(index: Tensor | slice, count: int) -> list[int]:
    return torch.arange(count)[index.cpu() if isinstance(index, Tensor) else index].tolist()


def _concatenate_edges(edges: Tensor, offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the edges of the samples at `index`; also return their offsets."""
    parts = [edges[:, offsets[i] : offsets[i + 1]] for i in index.tolist()]
    return torch.cat(parts, dim=1), offsets_of([part.shape[1] for part in parts])


def _offset_edges(edges: Tensor, offsets: Tensor, chosen: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Edges of the `chosen` samples, with point indices in a batch whose sample k has sizes[k] points."""
    starts = [0, *accumulate(sizes)]
    parts = [edges[:, offsets[i] : offsets[i + 1]] + start for i, start in zip(chosen, starts, strict=False)]
    return torch.cat(parts, dim=1)


def _require_spec(spec: FieldSpec, sample: Batch, name: str) -> None:
    """Raise unless the sample is a mesh with fields at its points, in the channels of `spec`."""
    parts = {"coords": sample.coords, "inputs": sample.inputs, "outputs": sample.targets}
    for part, values in parts.items():
        channels = len(getattr(spec, part))
        shape = (len(sample.coords), channels)
        if (values is None and channels) or (values is not None and tuple(values.shape) != shape):
            found = "nothing" if values is None else tuple(values.shape)
            raise UserError(f"{name}: {part} are {found}, expected (points, channels) = {shape}")
