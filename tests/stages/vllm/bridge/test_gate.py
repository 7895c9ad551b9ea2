"""The gate over a scheduler that only keeps its queues, without an engine."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from omnistage.stages.vllm.bridge.gate import QUEUES, GatedScheduler
from omnistage.stages.vllm.bridge.prefill_part import PrefillPart


class Half:
    """The scheduler half: requests in `ready` can run."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.num_waits = 0
        self.num_waiting = 0
        self.part: PrefillPart | None = None
        self.asked: tuple[list[str], list[str]] = ([], [])
        self.may_begin = False

    def count_waiting(self, num_requests: int) -> None:
        self.num_waiting = num_requests

    def collect(self) -> None:
        pass

    def can_run(self, request: Any) -> bool:
        return request.request_id in self.ready

    def held(self, running: Iterable[Any]) -> list[Any]:
        return [request for request in running if not self.can_run(request)]

    def choose_part(self, running: Any, waiting: Any, may_begin: bool) -> PrefillPart | None:
        self.asked = [one.request_id for one in running], [one.request_id for one in waiting]
        self.may_begin = may_begin
        return self.part

    def is_any_ready(self, requests: Iterable[Any]) -> bool:
        return any(self.can_run(request) for request in requests)

    def wait(self, timeout_s: float) -> None:
        self.num_waits += 1


class Queues(Scheduler):  # type: ignore[misc]
    """The part of vLLM's scheduler that the gate reads and writes."""

    def __init__(self) -> None:
        self.connector = SimpleNamespace(scheduler_half=Half())
        self.finished_req_ids: set[str] = set()
        self.running: list[Any] = []
        self.max_num_running_reqs = 2
        self.max_num_scheduled_tokens = 64
        self.seen: list[tuple[list[str], int]] = []
        self.limits: list[int] = []

    def schedule(self) -> Any:
        running = [request.request_id for request in self.running]
        self.seen.append((running, self.max_num_running_reqs))
        self.limits.append(self.max_num_scheduled_tokens)
        return SimpleNamespace(scheduled_new_reqs=[], finished_req_ids=set())


class GatedQueues(GatedScheduler, Queues):
    """A gate over nothing else."""


def request(name: str) -> Any:
    return SimpleNamespace(request_id=name, num_output_placeholders=0)


@pytest.mark.parametrize("queue", QUEUES)
def test_an_idle_engine_sleeps_until_an_input_comes_whichever_queue_has_the_request(
    queue: str,
) -> None:
    scheduler = GatedQueues()
    half = scheduler.connector.scheduler_half
    setattr(scheduler, queue, [request("a")])
    scheduler.schedule()
    assert half.num_waits == 1
    half.ready.add("a")
    scheduler.schedule()
    assert half.num_waits == 1


def test_a_held_request_neither_runs_nor_gives_its_place_away() -> None:
    scheduler = GatedQueues()
    scheduler.running = [request("a"), request("b")]
    scheduler.connector.scheduler_half.ready.add("b")
    scheduler.schedule()
    assert scheduler.seen == [(["b"], 1)]
    assert [one.request_id for one in scheduler.running] == ["a", "b"]
    assert scheduler.max_num_running_reqs == 2


@pytest.mark.parametrize("queue", QUEUES)
def test_requests_wait_for_a_seat_only_while_all_are_taken(queue: str) -> None:
    scheduler = GatedQueues()
    half = scheduler.connector.scheduler_half
    half.ready |= {"a", "b"}
    setattr(scheduler, queue, [request("c"), request("d"), request("e")])
    scheduler.running = [request("a"), request("b")]
    scheduler.schedule()
    assert half.num_waiting == 3
    scheduler.running = [request("a")]
    scheduler.schedule()
    assert half.num_waiting == 0


def test_a_step_with_a_part_has_its_tokens_and_gives_them_to_the_others_first() -> None:
    scheduler = GatedQueues()
    half = scheduler.connector.scheduler_half
    scheduler.max_num_running_reqs = 3
    scheduler.running = [request("part"), request("held"), request("runs")]
    half.ready |= {"part", "runs"}
    half.part = PrefillPart("part", 20)
    scheduler.schedule()
    assert scheduler.seen == [(["runs", "part"], 2)]
    assert scheduler.limits == [20]
    assert sorted(one.request_id for one in scheduler.running) == ["held", "part", "runs"]
    half.part = None
    scheduler.schedule()
    assert scheduler.limits == [20, 64]


def test_a_step_that_fails_leaves_no_limit_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Queues) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(Queues, "schedule", broken)
    scheduler = GatedQueues()
    scheduler.connector.scheduler_half.part = PrefillPart("a", 20)
    scheduler.running = [request("a"), request("held")]
    scheduler.connector.scheduler_half.ready.add("a")
    with pytest.raises(RuntimeError, match="broken"):
        scheduler.schedule()
    assert (scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs) == (64, 2)
    assert len(scheduler.running) == 2


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(
    ("num_taken", "waiting", "may_begin"), [(1, ["w"], True), (2, ["w"], False), (4, [], False)]
)
def test_half_of_the_seats_are_for_prompts_that_have_come_whole(
    num_taken: int, waiting: list[str], may_begin: bool, queue: str
) -> None:
    scheduler = GatedQueues()
    half = scheduler.connector.scheduler_half
    scheduler.max_num_running_reqs = 4
    scheduler.running = [request(str(number)) for number in range(num_taken)]
    setattr(scheduler, queue, [request("w")])
    scheduler.schedule()
    assert half.asked == ([one.request_id for one in scheduler.running], waiting)
    assert half.may_begin is may_begin
