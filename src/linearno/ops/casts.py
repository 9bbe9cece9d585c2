"""What layers make of small weights, made for all at once at the start of a step instead of layer by layer:
copies in a narrower type, and 1 / clamp(t) of temperatures."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

import torch
from torch import Tensor

Bounds = tuple[float, float]


class Casts:
    """Copies of parameters in another type, brought up to date whenever they are lent out.

    Parameters that lie in one piece of memory are cast by one kernel. Inverses are made of those that were
    asked for in the block before.
    """

    def __init__(self, parameters: Iterable[Tensor], kind: torch.dtype):
        self.originals, self.kind = list(parameters), kind
        self._places: list[int] = []
        self._inverses: dict[tuple[int, Bounds], tuple[Tensor, Tensor]] = {}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside the block `narrow` finds the copies. The originals must not change there."""
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
        self._inverses = {}

    def copy_of(self, weight: Tensor) -> Tensor | None:
        return self._copies.get(id(weight))

    def inverse_of(self, t: Tensor, bounds: Bounds) -> Tensor | None:
        """1 / t clamped; None when it is asked for the first time."""
        key = id(t), bounds
        if key in self._inverses:
            return self._inverses[key][1]
        if id(t) in self._copies:
            self._inverses[key] = t.detach(), torch.empty_like(t)
        return None

    def _invert(self) -> None:
        for bounds in {bounds for _, bounds in self._inverses}:
            pairs = [pair for (_, own), pair in self._inverses.items() if own == bounds]
            sources, inverses = (list(part) for part in zip(*pairs, strict=True))
            torch._foreach_copy_(inverses, sources)
            if bounds != (-inf, inf):
                torch._foreach_clamp_min_(inverses, bounds[0])
                torch._foreach_clamp_max_(inverses, bounds[1])
            torch._foreach_reciprocal_(inverses)


_CASTS: ContextVar[Casts | None] = ContextVar("casts", default=None)


def narrow(weight: Tensor, kind: torch.dtype) -> Tensor:
    """`weight` in the type `kind`: itself, the copy lent out where there is one, else a new one."""
    if weight.dtype == kind:
        return weight.detach()
    casts = _CASTS.get()
    copy = casts.copy_of(weight) if casts else None
    return copy if copy is not None and copy.dtype == kind else weight.detach().to(kind)


def lent_inverse(t: Tensor, low: float, high: float) -> Tensor | None:
    """1 / t clamped between the bounds, where it is lent out."""
    casts = _CASTS.get()
    return casts.inverse_of(t, (low, high)) if casts else None
