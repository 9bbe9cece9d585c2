"""A name for each model, dataset and recipe. One decorator, one good error."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from linearno.core.errors import entry

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to entries. A duplicate raises when it is made; a miss names its neighbours."""

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(new: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = new
            return new

        return add

    def __getitem__(self, name: str) -> T:
        return entry(self.kind, name, self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: str) -> bool:
        return name in self._entries
