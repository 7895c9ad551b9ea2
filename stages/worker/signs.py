"""Signs of life of a stage's engine: it answers, or it cannot because code is compiled."""

import asyncio
from collections.abc import Callable, Coroutine

from omnistage.stages.messages.to_gateway import Alive, Compiling
from omnistage.stages.worker.process.compiles import read_compiles

INTERVAL_S = 0.5


async def send_signs(
    ask: Callable[[], Coroutine[object, object, None]], send: Callable[[Alive | Compiling], None]
) -> None:
    """Send `Alive` each time after `ask` has returned, and `Compiling` while it cannot.

    Raises what `ask` raises.
    """
    while True:
        await _answer(asyncio.ensure_future(ask()), send)
        send(Alive())
        await asyncio.sleep(INTERVAL_S)


async def _answer(asking: asyncio.Future[None], send: Callable[[Compiling], None]) -> None:
    """Wait for it. A process that compiles one short kernel after another compiles all the time."""
    seen = None
    try:
        while not (await asyncio.wait({asking}, timeout=INTERVAL_S))[0]:
            before, seen = seen, read_compiles()
            if seen.is_running or before not in (None, seen):
                send(Compiling())
        asking.result()
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
