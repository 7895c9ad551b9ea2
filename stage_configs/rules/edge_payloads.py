"""Finds what an edge carries: a payload that both of its ends know."""

from collections.abc import Collection
from typing import Protocol

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.kinds import Payload, Payloads


class NoPayload(Exception):
    """The ends of an edge do not agree on what goes along it."""


class Named(Protocol):
    """A stage of a graph."""

    @property
    def name(self) -> str:
        """Returns its name in a graph file."""

    @property
    def kind(self) -> str:
        """One of KINDS."""


def carried_between(source: Named, target: Named, chosen: Collection[Payload]) -> Payloads:
    """The payloads from one stage to another; raises NoPayload, which names both.

    `chosen`: what the edge is said to carry; without it, the one thing that both ends share.
    """
    makes, takes = KINDS[source.kind].makes, KINDS[target.kind].takes
    shared = [choice for choice in takes if choice <= makes]
    ends = (
        f"stage {source.name!r} makes {named(makes)}; "
        f"stage {target.name!r} takes {_either(takes) or 'nothing: its kind has no edges to it'}"
    )
    if not shared:
        raise NoPayload(f"nothing to carry: {ends}")
    if chosen:
        if frozenset(chosen) not in shared:
            raise NoPayload(f"{named(chosen)} cannot be carried: {ends}")
        return frozenset(chosen)
    if len(shared) > 1:
        raise NoPayload(f"`carries` must choose {_either(shared)}: {ends}")
    return shared[0]


def named(names: Collection[Payload]) -> str:
    """Payloads as a user writes them."""
    return " and ".join(sorted(names)) or "nothing"


def _either(choices: Collection[Collection[Payload]]) -> str:
    return ", or ".join(named(choice) for choice in choices)
