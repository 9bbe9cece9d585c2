"""What layers make of small weights, made for all at once at the start of a step instead of layer by layer:
copies in a narrower type, 1 / clamp(t) of temperatures, and ones in their place where there are none."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Bounds = tuple[float, float]


class WeightCache:
    """Copies of parameters in another type, brought up to date whenever they are lent out.

    Parameters that lie in one piece of memory are cast by one kernel. Inverses are made of those that were
    asked for in a block before.
    """

    def __init__(self, parameters: Iterable[Tensor], kind: torch.dtype):
        self.originals, self.kind = list(parameters), kind
        self._places: list[int] = []
        self._wanted: dict[Bounds, dict[int, Tensor]] = {}
        self._inverses: dict[tuple[int, Bounds], Tensor] = {}
        self._ones: dict[int, Tensor] = {}

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Inside the block `cast_weight` finds the copies. The originals must not change there."""
        places = [original.data_ptr() for original in self.originals]
        if places != self._places:
            self._places = places
            self._arrange()
        with torch.no_grad():
            for source, copy in self._pieces:
                copy.copy_(source)
            self._invert()
        token = _CASTS.set(self)
        try:
            yield
        finally:
            _CASTS.reset(token)

    def _arrange(self) -> None:
        """One copy of each piece of memory, and in it the copy of each parameter."""
        flats: dict[int, tuple[Tensor, Tensor]] = {}
        self._copies: dict[int, Tensor] = {}
        for original in self.originals:
            storage = original.untyped_storage()
            if storage.data_ptr() not in flats:
                size = storage.nbytes() // original.element_size()
                flat = original.detach().as_strided((size,), (1,), 0)
                flats[storage.data_ptr()] = flat, torch.empty_like(flat, dtype=self.kind)
            _, copy = flats[storage.data_ptr()]
            self._copies[id(original)] = copy.as_strided(
                original.shape, original.stride(), original.storage_offset()
            )
        self._pieces = list(flats.values())
        self._wanted = {}

    def copy_of(self, weight: Tensor) -> Tensor | None:
        return self._copies.get(id(weight))

    def inverse_of(self, t: Tensor, bounds: Bounds) -> Tensor | None:
        """1 / t clamped; None in the first block that asks for it."""
        if id(t) in self._copies:
            self._wanted.setdefault(bounds, {}).setdefault(id(t), t.detach())
        return self._inverses.get((id(t), bounds))

    def ones(self, count: int) -> Tensor:
        """Made at the first asking: never by a graph that is being recorded."""
        if count not in self._ones:
            self._ones[count] = torch.ones(count, device=self.originals[0].device)
        return self._ones[count]

    def _invert(self) -> None:
        """A few kernels for all."""
        self._inverses = {}
        for bounds, sources in self._wanted.items():
            inverses = torch._foreach_clamp_min(list(sources.values()), bounds[0])
            torch._foreach_clamp_max_(inverses, bounds[1])
            torch._foreach_reciprocal_(inverses)
            self._inverses |= {(key, bounds): inverse for key, inverse in zip(sources, inverses, strict=True)}


_CASTS: ContextVar[WeightCache | None] = ContextVar("casts", default=None)


def cast_weight(weight: Tensor, kind: torch.dtype) -> Tensor:
    """`weight` in the type `kind`: itself, the copy lent out where there is one, else a new one."""
    if weight.dtype == kind:
        return weight.detach()
    casts = _CASTS.get()
    copy = casts.copy_of(weight) if casts else None
    return copy if copy is not None and copy.dtype == kind else weight.detach().to(kind)


def cached_inverse(t: Tensor, low: float, high: float) -> Tensor | None:
    """1 / t clamped between the bounds, where it is lent out."""
    casts = _CASTS.get()
    return casts.inverse_of(t, (low, high)) if casts else None


def cached_ones(like: Tensor, count: int) -> Tensor:
    """So many, in float32: those lent out where there are some, else new ones."""
    casts = None if torch.compiler.is_compiling() else _CASTS.get()
    return casts.ones(count) if casts else like.new_ones(count, dtype=torch.float32)
