"""How long a stage waits for the stage upstream: only time in which it ran counts."""

import asyncio

from support.waiting import pass_over

from omnistage.connectors.standstill import Standstills
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.worker.requests.watch import Watch

LONG_S = 600.0


def pause(loop: asyncio.AbstractEventLoop) -> None:
    """Set the loop's clock forward, beyond every deadline: it did not run meanwhile."""
    pass_over(loop, 10 * LONG_S)


async def test_an_input_is_not_late_for_a_pause_of_the_stage() -> None:
    stood_still, came = asyncio.Event(), asyncio.Event()
    standstills = Standstills(lambda _: stood_still.set())
    standstills.start()
    watch = Watch(Deadlines(first_chunk_s=LONG_S, next_chunk_s=0.1), standstills)
    loop = asyncio.get_running_loop()
    loop.call_later(0.01, pause, loop)
    waiting = asyncio.create_task(watch.sees(came))
    await stood_still.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    came.set()
    assert await waiting
    came.clear()
    watch.restart()
    assert not await watch.sees(came)
    standstills.stop()


async def test_an_input_that_came_is_seen_however_late_it_is() -> None:
    came = asyncio.Event()
    watch = Watch(Deadlines(first_chunk_s=0.01), Standstills())
    await asyncio.sleep(0.02)
    assert not await watch.sees(came)
    came.set()
    assert await watch.sees(came)
