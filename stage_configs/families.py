"""The families of every installed package, and their kinds of stages."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TypeVar

from omnistage.connectors.registry import Registry, Unusable
from omnistage.stage_configs.family import Family
from omnistage.stage_configs.kinds import Kind

P = TypeVar("P")


class Families(Registry[Family]):
    """A family's kinds begin with its name: each has one owner, found without the others."""

    def __init__(self) -> None:
        super().__init__("omnistage.families", Family)

    def check(self, name: str, loaded: Family) -> None:
        """A family has the name of its entry point, and its kinds begin with it."""
        if loaded.name != name:
            raise ValueError(f"it calls itself {loaded.name!r}")
        for kind in loaded.kinds:
            owner = family_of(kind)
            if owner != name:
                raise ValueError(f"its kind {kind!r} begins with {self._other(owner)}")

    def _other(self, name: str) -> str:
        """Returns what a kind begins with in place of its family's name."""
        return f"the name of {self.described(name)}" if name in self.names else "another name"

    def owners(self, of: Callable[[Family], Mapping[str, object]]) -> dict[str, list[str]]:
        """By each key of one of the mappings that a family has: the families that have it."""
        found = defaultdict[str, list[str]](list)
        for name, family in self.usable():
            for key in of(family):
                found[key].append(name)
        return found

    def part(self, key: str, of: Callable[[Family], Mapping[str, P]]) -> P:
        """Returns what a key stands for; raises KeyError if no family has it, and Unusable if two
        do.
        """
        names = self.owners(of).get(key, [])
        if len(names) > 1:
            both = " and ".join(self.described(name) for name in names)
            raise Unusable(f"{key!r} is of two families: {both}; uninstall one")
        if not names:
            raise KeyError(key)
        return of(self.load(names[0]))[key]


class Kinds(MutableMapping[str, Kind]):
    """Every family's kinds by name; what this process sets itself comes first."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._own: dict[str, Kind] = {}

    def __getitem__(self, kind: str) -> Kind:
        """Raises KeyError for an unknown kind, and Unusable with why its family cannot be used."""
        if kind in self._own:
            return self._own[kind]
        return self._families.load(family_of(kind)).kinds[kind]

    def __setitem__(self, kind: str, value: Kind) -> None:
        self._own[kind] = value

    def __delitem__(self, kind: str) -> None:
        del self._own[kind]

    def __iter__(self) -> Iterator[str]:
        """The kinds of all families that can be used."""
        found = {kind for _, family in self._families.usable() for kind in family.kinds}
        return iter(sorted(found | self._own.keys()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def family_of(kind: str) -> str:
    """The name of the family that has a kind."""
    return kind.partition(".")[0]


FAMILIES = Families()
KINDS = Kinds(FAMILIES)
