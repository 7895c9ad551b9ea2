"""One run: a server, a workload, and levels of load one after the other."""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Protocol

import httpcore

from omnistage.bench.client import Client, ServerError, api_url, connected
from omnistage.bench.load import Load
from omnistage.bench.metrics import summarize
from omnistage.bench.profile.session import ProfileRecording, Profiling
from omnistage.bench.report import Level, Report, Sample

PROBE_S = 0.02


class Workload(Protocol):
    """The requests of a run."""

    @property
    def seed(self) -> int:
        """Returns the seed of all that is random in it."""

    def body(self, number: int, model: str) -> Mapping[str, Any]:
        """The body of request `number`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run. Without `model` it is the first one that the server offers.

    `from_plan`: a request of an open loop starts when it was to come, however late it was sent.
    `profiling`: how stages are profiled in the middle of each level.
    """

    url: str
    workload: Workload
    loads: tuple[Load, ...]
    timeout_s: float
    command: str = ""
    model: str | None = None
    api_key: str | None = None
    client: type[Client] = Client
    from_plan: bool = False
    profiling: Profiling | None = None


async def run_plan(
    plan: Plan,
    on_level: Callable[[Level], None],
    network: httpcore.AsyncNetworkBackend | None = None,
) -> Report:
    """Run each level and tell of it when it is over; raises ServerError before the first one."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    url = api_url(plan.url)
    levels: list[Level] = []
    async with connected(url, plan.api_key, plan.timeout_s, network, plan.client) as client:
        model = plan.model or await client.first_model()
        next_number = 0
        for load in plan.loads:
            num_all = load.num_warmups + load.num_requests
            numbers = range(next_number, next_number + num_all)
            next_number += num_all
            level = await run_level(client, plan, model, load, numbers)
            levels.append(level)
            on_level(level)
    return Report(
        date=date,
        command=plan.command,
        omnistage=version("omnistage"),
        url=url,
        model=model,
        seed=plan.workload.seed,
        levels=tuple(levels),
    )


async def run_level(client: Client, plan: Plan, model: str, load: Load, numbers: range) -> Level:
    """Warm up, then measure; every request has a number, and so a prompt, of its own."""
    loop = asyncio.get_running_loop()
    samples: list[Sample] = []

    async def ask(number: int, due_s: float | None) -> None:
        body = plan.workload.body(number, model)
        due_s = due_s if plan.from_plan else None
        samples.append(await client.ask(number, body, start_s, due_s))
        if recording is not None:
            recording.note_answered(len(samples))

    recording: ProfileRecording | None = None
    if plan.profiling is not None:
        await plan.profiling.rehearse()
    start_s = loop.time()
    await load.run(ask, numbers[: load.num_warmups])
    warmup_errors = tuple(sample.error for sample in samples if sample.error is not None)
    samples = []
    gc.collect()
    gc.freeze()  # else the collector goes through every module while answers come in
    start_s, start_cpu_s = loop.time(), time.process_time()
    lags_s: list[float] = []
    probe = asyncio.create_task(probe_lag(lags_s))
    if plan.profiling is not None:
        recording = plan.profiling.begin(load.num_requests)
    try:
        await load.run(ask, numbers[load.num_warmups :])
    finally:
        probe.cancel()
    duration_s = loop.time() - start_s
    client_cpu = (time.process_time() - start_cpu_s) / duration_s
    profile, no_profile = None, ""
    if recording is not None:
        try:
            profile = await recording.finish()
        except ServerError as error:
            no_profile = str(error)
    return Level(
        concurrency=load.concurrency,
        rate=load.rate,
        duration_s=duration_s,
        client_cpu=client_cpu,
        client_lag_s=summarize(lags_s),
        warmup_errors=warmup_errors,
        profile=profile,
        no_profile=no_profile,
        samples=tuple(sorted(samples, key=lambda sample: sample.number)),
    )


async def probe_lag(lags_s: list[float]) -> None:
    """Note how late this process wakes, and so by how much it may stamp an arrival late."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + PROBE_S
        await asyncio.sleep(PROBE_S)
        lags_s.append(loop.time() - due_s)
