"""One computing thread for all, others while it is busy, and no idle threads of OpenMP."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.tiny_pipelines import TIMEOUT_S, Served, Settings, error, result
from support.waiting import wait_until

from omnistage.stages.diffusion.engine.compute_threads import ComputeThreads, release_threads


@pytest.fixture
def threads() -> Iterator[ComputeThreads]:
    made = ComputeThreads()
    yield made
    made.close()


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def thread_ids() -> set[str]:
    return set(os.listdir("/proc/self/task"))


class NewThreads:
    """Threads since it was made: those of other tests may end meanwhile."""

    def __init__(self) -> None:
        self._before = thread_ids()

    def become(self, number: int) -> None:
        """Wait until there are so many: the system lists a thread for a moment after its end."""
        wait_until(lambda: len(thread_ids() - self._before) == number)


def multiply() -> None:
    matrix = torch.ones(512, 512)
    torch.mm(matrix, matrix)


def test_all_callers_share_one_thread_that_keeps_no_gradients(threads: ComputeThreads) -> None:
    used = {threads.run(threading.current_thread)}
    with ThreadPoolExecutor(1) as other:
        used.add(other.submit(threads.run, threading.current_thread).result(TIMEOUT_S))
    assert len(used) == 1
    assert threading.current_thread() not in used
    assert threads.run(torch.is_inference_mode_enabled)


def test_a_busy_thread_holds_up_nobody(threads: ComputeThreads) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait() -> threading.Thread:
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        return threading.current_thread()

    with ThreadPoolExecutor(1) as other:
        busy = other.submit(threads.run, wait)
        assert begun.wait(TIMEOUT_S)
        second = threads.run(threading.current_thread)
        assert threads.run(threading.current_thread) is second
        may_end.set()
        first = busy.result(TIMEOUT_S)
    assert second is not first
    assert threads.run(threading.current_thread) is first
    second.join(TIMEOUT_S)
    assert not second.is_alive()


def test_three_callers_hold_up_none_of_each_other(threads: ComputeThreads) -> None:
    together = threading.Barrier(3)

    def meet() -> threading.Thread:
        together.wait(TIMEOUT_S)
        return threading.current_thread()

    with ThreadPoolExecutor(3) as callers:
        meetings = [callers.submit(threads.run, meet) for _ in range(3)]
        used = {meeting.result(TIMEOUT_S) for meeting in meetings}
    assert len(used) == 3
    last = threads.run(threading.current_thread)
    assert last in used
    for thread in used - {last}:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_an_error_is_the_caller_s_and_the_thread_goes_on(threads: ComputeThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        threads.run(lambda: 1 // 0)
    assert threads.run(lambda: 1) == 1


@pytest.mark.usefixtures("two_cores")
def test_released_threads_end_and_come_again() -> None:
    release_threads()
    threads = NewThreads()
    for _ in range(2):
        multiply()
        threads.become(1)
        release_threads()
        threads.become(0)


@pytest.mark.usefixtures("two_cores")
def test_who_lets_compute_keeps_no_threads(threads: ComputeThreads) -> None:
    multiply()
    started = NewThreads()
    threads.run(multiply)
    started.become(2)  # the one that computes and its own; ours has ended
    multiply()
    started.become(3)
    threads.run(multiply)
    started.become(2)


@pytest.mark.usefixtures("two_cores")
def test_a_lone_request_is_computed_in_one_thread() -> None:
    served = Served("flux")
    used = set()

    def note(*_: object) -> None:
        used.add(threading.current_thread().name)

    for part in (served.pipeline.text_encoder, served.pipeline.transformer, served.pipeline.vae):
        for inner in part.children():
            inner.register_forward_pre_hook(note)
    settings = Settings(1, 3)
    try:
        made = result(served.ask(settings))
    finally:
        served.engine.close()
    assert error(made, served.expected(settings)) < 1e-5
    assert used == {"omnistage-compute_0"}
