"""Loads a server with requests for pictures, and the bare pipeline in turns with it.

A shared machine is not always as fast: levels take turns in rounds, and the bare pipeline's calls
take turns with single requests.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, computed_field

from omnistage.bench.client import ServerError
from omnistage.bench.load import ClosedLoop
from omnistage.bench.metrics import Summary, summarize

OK = 200
PROMPTS = ("a fox in the snow", "a red house by the sea", "an old map of the world", "two birds")
MakeBare = Callable[[int], float]


class PictureSample(BaseModel, frozen=True):
    """One request of one level and round; seconds since the round's start."""

    concurrency: int
    round: int
    start_s: float
    end_s: float
    num_images: int = 0
    error: str | None = None


class PictureLevel(BaseModel, frozen=True):
    """So many requests at once, over all rounds; `durations_s` are the rounds'."""

    concurrency: int
    durations_s: tuple[float, ...]
    samples: tuple[PictureSample, ...]

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def latency_s(self) -> Summary | None:
        """Of the answered requests."""
        return summarize(one.end_s - one.start_s for one in self.samples if one.error is None)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def images_per_s(self) -> tuple[float, ...]:
        """Of each round."""
        counts = [0] * len(self.durations_s)
        for one in self.samples:
            counts[one.round] += one.num_images
        return tuple(count / s for count, s in zip(counts, self.durations_s, strict=True))

    @property
    def errors(self) -> list[str]:
        """One for each request that failed."""
        return [one.error for one in self.samples if one.error is not None]


class Pairs(BaseModel, frozen=True):
    """Seconds of single requests and of the bare pipeline's calls right beside them."""

    served_s: tuple[float, ...]
    bare_s: tuple[float, ...]

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def ratio_quartiles(self) -> tuple[float, float, float]:
        """Of served over bare, pair by pair."""
        low, median, high = np.percentile(np.divide(self.served_s, self.bare_s), (25, 50, 75))
        return float(low), float(median), float(high)


class PictureReport(BaseModel, frozen=True):
    """The file that `--json` writes."""

    command: str
    url: str
    body: dict[str, Any]
    levels: tuple[PictureLevel, ...]
    pairs: Pairs | None = None


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """What to measure. `body`: fields of every request; each has a prompt and seed of its own."""

    url: str
    body: Mapping[str, Any]
    concurrency: Sequence[int]
    requests: int | None = None  # of a level and round
    rounds: int = 3
    num_pairs: int = 0
    timeout_s: float = 600
    api_key: str | None = None
    transport: httpx.AsyncBaseTransport | None = field(default=None, repr=False)


def numbered(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The body of one request."""
    return {"prompt": PROMPTS[number % len(PROMPTS)], "seed": number, **body}


class PictureBench:
    """One run against one server."""

    def __init__(self, plan: PicturePlan, client: httpx.AsyncClient) -> None:
        self._plan = plan
        self._client = client
        self._number = 0

    async def ask(self, concurrency: int, round_: int, start_s: float) -> PictureSample:
        """One request; whatever fails is the sample's error."""
        self._number += 1
        body = numbered(self._plan.body, self._number)
        begun_s = time.perf_counter()
        error, num_images = None, 0
        try:
            answer = await self._client.post("/v1/images/generations", json=body)
            if answer.status_code == OK:
                num_images = len(answer.json()["data"])
            else:
                error = f"HTTP {answer.status_code}: {answer.text[:200]}"
        except httpx.HTTPError as failure:
            error = f"{type(failure).__name__}: {failure}"
        return PictureSample(
            concurrency=concurrency,
            round=round_,
            start_s=begun_s - start_s,
            end_s=time.perf_counter() - start_s,
            num_images=num_images,
            error=error,
        )

    async def run_round(self, concurrency: int, round_: int) -> tuple[float, list[PictureSample]]:
        """One level once: seconds, samples."""
        samples: list[PictureSample] = []
        start_s = time.perf_counter()

        async def ask(_: int, due_s: float | None) -> None:
            samples.append(await self.ask(concurrency, round_, start_s))

        count = self._plan.requests or 4 * concurrency
        await ClosedLoop(concurrency, count, 0).run(ask, range(count))
        return time.perf_counter() - start_s, samples

    async def levels(self) -> tuple[PictureLevel, ...]:
        """All levels, one after the other in each round; before them each once for warming up."""
        for concurrency in self._plan.concurrency:
            await self.run_round(concurrency, 0)
        made: dict[int, list[tuple[float, list[PictureSample]]]] = {}
        for round_ in range(self._plan.rounds):
            for concurrency in self._plan.concurrency:
                made.setdefault(concurrency, []).append(await self.run_round(concurrency, round_))
        return tuple(
            PictureLevel(
                concurrency=concurrency,
                durations_s=tuple(duration_s for duration_s, _ in rounds),
                samples=tuple(sample for _, samples in rounds for sample in samples),
            )
            for concurrency, rounds in made.items()
        )

    async def pairs(self, bare: MakeBare) -> Pairs:
        """Single requests in turns with the bare pipeline; who is first changes."""
        served_s, bare_s = [], []

        async def ask_server() -> None:
            sample = await self.ask(1, 0, 0.0)
            if sample.error is not None:
                raise ServerError(sample.error)
            served_s.append(sample.end_s - sample.start_s)

        async def ask_bare() -> None:
            bare_s.append(await asyncio.to_thread(bare, self._number))

        for pair in range(-1, self._plan.num_pairs):  # the first one warms up
            for ask in (ask_server, ask_bare) if pair % 2 else (ask_bare, ask_server):
                await ask()
        return Pairs(served_s=tuple(served_s[1:]), bare_s=tuple(bare_s[1:]))


async def measure(plan: PicturePlan, bare: MakeBare | None, command: str = "") -> PictureReport:
    """The levels and, with the bare pipeline, the pairs. Raises ValueError if a pair fails."""
    headers = {} if plan.api_key is None else {"Authorization": f"Bearer {plan.api_key}"}
    client = httpx.AsyncClient(
        base_url=plan.url.removesuffix("/").removesuffix("/v1"),
        headers=headers,
        timeout=plan.timeout_s,
        limits=httpx.Limits(max_connections=None),
        transport=plan.transport,
    )
    async with client:
        bench = PictureBench(plan, client)
        pairs = None if bare is None else await bench.pairs(bare)
        levels = await bench.levels()
    return PictureReport(
        command=command, url=plan.url, body=dict(plan.body), levels=levels, pairs=pairs
    )
