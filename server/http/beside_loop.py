"""Where a request's Python work goes that would hold the event loop up: into a few threads.

Python lets one thread compute at a time and takes turns every 5 ms, so more threads would not be
faster, but each would make the event loop wait for one turn more.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from fastapi import FastAPI, Request

NUM_THREADS = 2
MAX_LOOP_BYTES = 64 << 10  # what comes of longer bodies is done beside the event loop

T = TypeVar("T")


def install_threads(app: FastAPI) -> None:
    """Have an app's requests share these threads."""
    app.state.body_threads = ThreadPoolExecutor(NUM_THREADS, "body")


async def beside_loop(request: Request, work: Callable[[], T]) -> T:
    """Do a request's work: here if its body is short, else in one of the threads."""
    if len(await request.body()) <= MAX_LOOP_BYTES:
        return work()
    return await in_thread(request, work)


async def in_thread(request: Request, work: Callable[[], T]) -> T:
    """Do work of a request in one of the threads."""
    threads: Executor = request.app.state.body_threads
    context = copy_context()  # a log line that is written there is the request's too
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)
