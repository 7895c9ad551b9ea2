"""Ray Serve's requests go to cells that are ready."""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.server.cells.ready_router import ReadyRouter, ranked


@dataclass(frozen=True)
class Replica:
    """As Serve has one."""

    name: str
    routing_stats: dict[str, Any] = field(default_factory=dict)

    @property
    def replica_id(self) -> Any:
        return SimpleNamespace(unique_id=self.name)


def replicas(*ready: bool) -> list[Replica]:
    return [Replica(f"r{number}", {"ready": is_ready}) for number, is_ready in enumerate(ready)]


def chosen(found: list[list[Any]]) -> list[set[str]]:
    return [{one.name for one in group} for group in found]


def test_a_cell_that_lacks_a_stage_gets_nothing_while_another_is_ready() -> None:
    for _ in range(50):
        assert chosen(ranked(replicas(False, True, False, True), "")) == [{"r1", "r3"}]
        assert chosen(ranked(replicas(False, True), "")) == [{"r1"}]


def test_of_many_ready_cells_two_are_asked_and_each_is_at_times() -> None:
    counted = Counter[str]()
    for _ in range(400):
        (pair,) = chosen(ranked(replicas(True, True, True, True), ""))
        assert len(pair) == 2
        counted.update(pair)
    assert set(counted) == {"r0", "r1", "r2", "r3"}


def test_if_no_cell_is_ready_one_of_them_says_so_to_the_client() -> None:
    (pair,) = chosen(ranked(replicas(False, False), ""))
    assert pair == {"r0", "r1"}
    assert ranked([], "") == []


def test_a_cell_that_has_told_nothing_yet_is_taken_for_ready() -> None:
    """Serve routes to a replica only after its application has begun, which waits for stages."""
    (pair,) = chosen(ranked([Replica("new"), Replica("lost", {"ready": False})], ""))
    assert pair == {"new"}


def test_a_session_stays_with_its_cell_and_leaves_it_only_while_that_is_not_ready() -> None:
    everywhere = replicas(True, True, True)
    owners = {name: chosen(ranked(everywhere, name))[0] for name in map(str, range(60))}
    assert {one for owner in owners.values() for one in owner} == {"r0", "r1", "r2"}
    for name, owner in owners.items():
        assert chosen(ranked(everywhere[::-1], name))[0] == owner
        without_first = chosen(ranked(replicas(False, True, True), name))[0]
        assert without_first == (owner if owner != {"r0"} else without_first) != {"r0"}


def test_a_session_whose_cell_is_full_goes_elsewhere() -> None:
    first, pair = chosen(ranked(replicas(True, True), "mine"))
    assert len(first) == 1
    assert pair == {"r0", "r1"}


@pytest.mark.parametrize("session", ["", "mine"])
async def test_the_router_asks_by_the_session_and_waits_between_its_tries(session: str) -> None:
    router = object.__new__(ReadyRouter)
    context = SimpleNamespace(should_backoff=False)
    metadata = SimpleNamespace(session_id=session)
    pending: Any = SimpleNamespace(metadata=metadata, routing_context=context)
    candidates: Any = replicas(False, True)
    found = await router.choose_replicas(candidates, pending)
    assert chosen(found) == [{"r1"}] * (2 if session else 1)
    assert context.should_backoff
    assert chosen(await router.choose_replicas(candidates)) == [{"r1"}]
