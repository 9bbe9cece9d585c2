"""Weights in a narrower type, all cast at once at the start of a step instead of layer by layer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_CASTS: ContextVar[dict[int, Tensor] | None] = ContextVar("casts", default=None)


class Casts:
    """Copies of parameters in another type, brought up to date whenever they are lent out.

    Parameters that lie in one piece of memory are cast by one kernel.
    """

    def __init__(self, parameters: Iterable[Tensor], kind: torch.dtype):
        self.originals, self.kind = list(parameters), kind
        self._places: list[int] = []

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
        token = _CASTS.set(self._copies)
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


def narrow(weight: Tensor, kind: torch.dtype) -> Tensor:
    """`weight` in the type `kind`: itself, the copy lent out where there is one, else a new one."""
    if weight.dtype == kind:
        return weight.detach()
    copy = (_CASTS.get() or {}).get(id(weight))
    return copy if copy is not None and copy.dtype == kind else weight.detach().to(kind)
