"""Finds what installed packages register in a group of entry points, and loads it on use."""

import importlib.metadata
from collections.abc import Iterator
from functools import cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Unusable(ValueError):
    """A registered name that cannot be used; the message has the package and the cause."""


@cache
def every_entry_point() -> Any:
    """Returns the entry points of all packages, read once: that takes as long as for one group."""
    return importlib.metadata.entry_points()


@cache
def registered(group: str) -> importlib.metadata.EntryPoints:
    """The entry points of a group in this environment."""
    found: importlib.metadata.EntryPoints = every_entry_point().select(group=group)
    return found


class Registry(Generic[T]):
    """The entry points of one group, each of which names a `kind`.

    One that cannot be loaded, and a name that two packages register, fail when that name is asked
    for: all others work.
    """

    def __init__(self, group: str, kind: type[T]) -> None:
        self._group = group
        self._kind = kind
        self._loaded: dict[str, T] = {}

    @property
    def names(self) -> list[str]:
        """All that are registered; raises Unusable if none are, as our own always should be."""
        found = sorted({point.name for point in registered(self._group)})
        if not found:
            message = f"no package registers {self._group}: install omnistage again"
            raise Unusable(f"{message}, its metadata is older than its files")
        return found

    def packages(self, name: str) -> list[str]:
        """Who registers a name."""
        return [_package(point) for point in registered(self._group).select(name=name)]

    def load(self, name: str) -> T:
        """Returns what a name stands for; raises KeyError for an unknown one, and Unusable."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def check(self, name: str, loaded: T) -> None:
        """Raise ValueError for what has been loaded and cannot be used."""

    def _load(self, name: str) -> T:
        points = list(registered(self._group).select(name=name))
        if not points:
            raise KeyError(name)
        if len(points) > 1:
            message = f"{self.described(name)} is registered more than once: uninstall all but one"
            raise Unusable(message)
        try:
            loaded = points[0].load()
            if not isinstance(loaded, self._kind):
                raise TypeError(f"{points[0].value} is no {self._kind.__name__}")
            self.check(name, loaded)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise Unusable(f"{self.described(name)} cannot be used: {cause}") from error
        return loaded

    def usable(self) -> Iterator[tuple[str, T]]:
        """All that can be used, by name."""
        for name in self.names:
            try:
                yield name, self.load(name)
            except Unusable:
                continue

    def problems(self) -> list[str]:
        """Why each of the others cannot be used."""
        return [str(error) for name in self.names if (error := self._problem(name)) is not None]

    def described(self, name: str) -> str:
        """A name with its package, for a message."""
        packages = " and ".join(self.packages(name))
        return f"{name!r} of {self._group} (package {packages})"

    def _problem(self, name: str) -> Unusable | None:
        try:
            self.load(name)
        except Unusable as error:
            return error
        return None


def _package(point: importlib.metadata.EntryPoint) -> str:
    """The name and version of the package that has an entry point."""
    return "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"
