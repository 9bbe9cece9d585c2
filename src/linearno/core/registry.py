"""A name for each model, benchmark and recipe. One decorator, one good error."""

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from linearno.core.errors import UserError, entry

log = logging.getLogger(__name__)
T = TypeVar("T")


class Registry(Generic[T]):
    """Names to entries. A duplicate raises when it is made; a miss names its neighbours.

    Args:
        kind: what an entry is called in errors.
        plugins: entry-point group in which installed packages announce modules that register entries; they
            are imported at the first look-up.
        hint: what else to try, added to the error for an unknown name.
    """

    def __init__(self, kind: str, *, plugins: str | None = None, hint: str = ""):
        self.kind, self.hint = kind, hint
        self._plugins = plugins
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(new: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = new
            return new

        return add

    def registered(self, name: str) -> T | None:
        """The entry of that name among those so far, without a look at plugins."""
        return self._entries.get(name)

    def __getitem__(self, name: str) -> T:
        self._load_plugins()
        try:
            return entry(self.kind, name, self._entries)
        except UserError as error:
            raise UserError(f"{error}; {self.hint}" if self.hint else str(error)) from None

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        self._load_plugins()
        return name in self._entries

    def _load_plugins(self) -> None:
        if self._plugins is None:
            return
        group, self._plugins = self._plugins, None
        for point in entry_points(group=group):
            try:
                point.load()
            except Exception as error:  # code of other packages must not break this one
                log.warning("plugin %s = %s does not load: %s", point.name, point.value, error)
