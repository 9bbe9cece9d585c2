"""Cache values derived from small weights for one step: low-precision copies and inverse temperatures.

All of them are computed together at the start of a step instead of layer by layer.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Bounds = tuple[float, float]


class WeightCache:
    """Copies of parameters in another dtype, updated whenever the cache is activated.

    One kernel casts all parameters that share a storage. Inverses are computed for the parameters requested
    in an earlier activation.

    Args:
        parameters: weights to copy.
        dtype: dtype of the copies.
    """

    def __init__(self, parameters: Iterable[Tensor], dtype: torch.dtype):
        self.originals, self.dtype = list(parameters), dtype
        self._addresses: list[int] = []
        self._requested: dict[Bounds, dict[int, Tensor]] = {}
        self._inverses: dict[tuple[int, Bounds], Tensor] = {}
        self._ones: dict[int, Tensor] = {}

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Update the copies for use by `cast_weight` inside the block, where originals must not change."""
        addresses = [original.data_ptr() for original in self.originals]
        if addresses != self._addresses:
            self._addresses = addresses
            self._allocate()
        with torch.no_grad():
            for source, copy in self._storages:
                copy.copy_(source)
            self._update_inverses()
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def _allocate(self) -> None:
        """Allocate a copy of each storage, and a view of it for each parameter."""
        storages: dict[int, tuple[Tensor, Tensor]] = {}
        self._copies: dict[int, Tensor] = {}
        for original in self.originals:
            storage = original.untyped_storage()
            if storage.data_ptr() not in storages:
                size = storage.nbytes() // original.element_size()
                flat = original.detach().as_strided((size,), (1,), 0)
                storages[storage.data_ptr()] = flat, torch.empty_like(flat, dtype=self.dtype)
            _, copy = storages[storage.data_ptr()]
            self._copies[id(original)] = copy.as_strided(
                original.shape, original.stride(), original.storage_offset()
            )
        self._storages = list(storages.values())
        self._requested = {}

    def copy_of(self, weight: Tensor) -> Tensor | None:
        return self._copies.get(id(weight))

    def inverse_of(self, t: Tensor, bounds: Bounds) -> Tensor | None:
        """1 / clamp(t); None in the first activation that requests it."""
        if id(t) in self._copies:
            self._requested.setdefault(bounds, {}).setdefault(id(t), t.detach())
        return self._inverses.get((id(t), bounds))

    def ones(self, count: int) -> Tensor:
        """A vector of ones, allocated at its first use, which must not be inside a captured graph."""
        if count not in self._ones:
            self._ones[count] = torch.ones(count, device=self.originals[0].device)
        return self._ones[count]

    def _update_inverses(self) -> None:
        """Compute all requested inverses with a few kernels."""
        self._inverses = {}
        for bounds, sources in self._requested.items():
            inverses = torch._foreach_clamp_min(list(sources.values()), bounds[0])
            torch._foreach_clamp_max_(inverses, bounds[1])
            torch._foreach_reciprocal_(inverses)
            self._inverses |= {(key, bounds): inverse for key, inverse in zip(sources, inverses, strict=True)}


_ACTIVE: ContextVar[WeightCache | None] = ContextVar("casts", default=None)


def cast_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight` in `dtype`: itself, the copy of the active cache, or a new copy."""
    if weight.dtype == dtype:
        return weight.detach()
    cache = _ACTIVE.get()
    copy = cache.copy_of(weight) if cache else None
    return copy if copy is not None and copy.dtype == dtype else weight.detach().to(dtype)


def cached_inverse(t: Tensor, low: float, high: float) -> Tensor | None:
    """1 / clamp(t, low, high) of the active cache; None if there is none."""
    cache = _ACTIVE.get()
    return cache.inverse_of(t, (low, high)) if cache else None


def cached_ones(like: Tensor, count: int) -> Tensor:
    """`count` float32 ones: from the active cache, or new ones on the device of `like`."""
    cache = None if torch.compiler.is_compiling() else _ACTIVE.get()
    return cache.ones(count) if cache else like.new_ones(count, dtype=torch.float32)
