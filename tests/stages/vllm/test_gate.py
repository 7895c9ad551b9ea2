"""The gate over a scheduler that only keeps its queues, without an engine."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.gate import QUEUES, _Gate


class Half:
    """The scheduler half: requests in `ready` can run."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.num_waits = 0
        self.num_waiting = 0

    def count_waiting(self, num_requests: int) -> None:
        self.num_waiting = num_requests

    def collect(self) -> None:
        pass

    def can_run(self, request: Any) -> bool:
        return request.request_id in self.ready

    def is_any_ready(self, requests: Iterable[Any]) -> bool:
        return any(self.can_run(request) for request in requests)

    def wait(self, timeout_s: float) -> None:
        self.num_waits += 1


class Queues:
    """The part of vLLM's scheduler that the gate reads and writes."""

    def __init__(self) -> None:
        self.connector = SimpleNamespace(scheduler_half=Half())
        self.finished_req_ids: set[str] = set()
        self.running: list[Any] = []
        self.max_num_running_reqs = 2
        self.seen: list[tuple[list[str], int]] = []

    def schedule(self) -> Any:
        running = [request.request_id for request in self.running]
        self.seen.append((running, self.max_num_running_reqs))
        return SimpleNamespace(scheduled_new_reqs=[], finished_req_ids=set())


class GatedQueues(_Gate, Queues):
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
