"""Requests to a diffusion engine that come to their first step together.

Encoders run in threads of their own, so each request comes to its first step in its own time. They
are only sure to share forwards if none takes a step before all of them wait for one.
"""

import threading
from collections.abc import Callable

from omnistage.stages.diffusion.engine.job import Job
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher

TIMEOUT_S = 600


def begin_together(engine: StepBatcher, number: int) -> None:
    """Hold the next `number` requests until all have come, then until all wait for a step.

    Encoders run meanwhile. The engine must have no other request.
    """
    inbox, is_held, are_together = engine._inbox, threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        with inbox.changed:
            assert inbox.changed.wait_for(lambda: len(inbox.jobs) >= number, TIMEOUT_S)

    def may_step(waiting: list[Job]) -> bool:
        if len(waiting) == number:
            are_together.set()
        return are_together.is_set()

    gate_steps(engine, may_step)
    engine.between_steps(hold)
    assert is_held.wait(TIMEOUT_S)


def gate_steps(engine: StepBatcher, may_step: Callable[[list[Job]], bool]) -> None:
    """Make no step while `may_step` is false of the requests that wait for one.

    It is asked again with whatever comes to the engine: requests, results of encoders, orders.
    """
    inbox = engine._inbox

    def next_batch() -> list[Job]:
        if may_step([job for job in engine._jobs if job.errand is None]):
            return StepBatcher._next_batch(engine)
        with inbox.changed:
            inbox.changed.wait_for(
                lambda: inbox._has_any(1) or any(job.is_cancelled for job in engine._jobs)
            )
        return []

    vars(engine)["_next_batch"] = next_batch
