"""Registries of models, benchmarks, recipes and tasks by name."""

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from linearno.core.errors import UserError, look_up

log = logging.getLogger(__name__)
T = TypeVar("T")


class Registry(Generic[T]):
    """Entries by name. A duplicate name raises; an unknown name raises with similar names.

    Args:
        kind: noun for an entry in errors, such as "model".
        plugins: entry-point group of installed packages, whose modules register entries; they are imported
            at the first look-up.
        hint: advice, appended to the error for an unknown name.
    """

    def __init__(self, kind: str, *, plugins: str | None = None, hint: str = ""):
        self.kind, self.hint = kind, hint
        self._plugins = plugins
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers an entry as `name`."""

        def add(new: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = new
            return new

        return add

    def registered(self, name: str) -> T | None:
        """The entry of that name, or None; without loading plugins."""
        return self._entries.get(name)

    def __getitem__(self, name: str) -> T:
        self._load_plugins()
        try:
            return look_up(self.kind, name, self._entries)
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
            except Exception as error:  # a broken plugin must not break this package
                log.warning("plugin %s = %s cannot be loaded: %s", point.name, point.value, error)
