"""Runs sessions of /v1/realtime beside each other, level by level."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from omnistage.bench.client import api_url, connected
from omnistage.bench.metrics import summarize
from omnistage.bench.realtime.report import SessionsLevel, SessionsReport, TurnSample
from omnistage.bench.realtime.session import BenchSession
from omnistage.bench.realtime.voice import Script
from omnistage.bench.run import probe_lag

OK = 200
CONNECT_S = 10.0
AHEAD = re.compile(r'^omnistage_realtime_ahead_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SessionsPlan:
    """The plan of a run; `session` has fields of every session.update."""

    url: str
    levels: tuple[int, ...]
    script: Script
    session: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 600
    model: str | None = None
    api_key: str | None = None
    command: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of each request."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


async def run_sessions(
    plan: SessionsPlan, on_level: Callable[[SessionsLevel], None]
) -> SessionsReport:
    """Run each level and report it when it is over; raises ServerError."""
    url = api_url(plan.url)
    async with httpx.AsyncClient(headers=plan.headers, timeout=CONNECT_S) as client:
        model = plan.model or await _first_model(plan, url)
        levels = []
        for num_sessions in plan.levels:
            before = await _ahead(client, url)
            level = await run_level(plan, url, model, num_sessions)
            after = await _ahead(client, url)
            used = {name: count - before.get(name, 0) for name, count in after.items()}
            levels.append(level.model_copy(update={"ahead": used}))
            on_level(levels[-1])
    return SessionsReport(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=plan.command,
        omnistage=version("omnistage"),
        url=url,
        model=model,
        seed=plan.script.seed,
        levels=tuple(levels),
    )


async def run_level(plan: SessionsPlan, url: str, model: str, num_sessions: int) -> SessionsLevel:
    """Run sessions beside each other to their ends; each begins 20 ms behind the one before."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    samples: list[TurnSample] = []

    async def talk(number: int) -> None:
        await asyncio.sleep(number * 0.02)
        turns = plan.script.turns(number)
        try:
            query = httpx.QueryParams(model=model)
            address = f"{url.replace('http', 'ws', 1)}/realtime?{query}"
            limits: dict[str, Any] = {
                "open_timeout": CONNECT_S,
                "max_size": None,
                "compression": None,
            }
            async with connect(address, additional_headers=plan.headers, **limits) as ws:
                session = BenchSession(ws, number, start_s)
                await session.run(plan.session, turns, plan.timeout_s)
                samples.extend(session.samples)
        except (OSError, WebSocketException) as failure:
            error = f"{type(failure).__name__}: {failure}"
            speech_s = turns[0].seconds
            samples.append(TurnSample(session=number, number=0, speech_s=speech_s, error=error))

    lags_s: list[float] = []
    probe = asyncio.create_task(probe_lag(lags_s))
    try:
        async with asyncio.TaskGroup() as sessions:
            for number in range(num_sessions):
                sessions.create_task(talk(number))
    finally:
        probe.cancel()
    return SessionsLevel(
        sessions=num_sessions,
        duration_s=loop.time() - start_s,
        client_lag_s=summarize(lags_s),
        turns=tuple(sorted(samples, key=lambda turn: (turn.session, turn.number))),
    )


async def _first_model(plan: SessionsPlan, url: str) -> str:
    async with connected(url, plan.api_key, CONNECT_S) as client:
        return await client.first_model()


async def _ahead(client: httpx.AsyncClient, url: str) -> dict[str, int]:
    """Return how often this server worked ahead of a turn, by outcome; nothing of others."""
    try:
        answer = await client.get(f"{url.removesuffix('/v1')}/metrics")
    except httpx.HTTPError:
        return {}
    found = AHEAD.findall(answer.text) if answer.status_code == OK else []
    return {outcome: round(float(count)) for outcome, count in found}
