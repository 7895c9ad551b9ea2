"""Loads a server with requests for pictures, and the bare pipeline in turns with it.

A shared machine is not always as fast: levels take turns in rounds, and the bare pipeline's calls
take turns with single requests.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, computed_field

from omnistage.bench.client import ServerError
from omnistage.bench.load import Load, OpenLoop
from omnistage.bench.metrics import Span, Summary, most_in_flight, queue_grew, summarize
from omnistage.bench.report import Loaded

OK = 200
PROMPTS = ("a fox in the snow", "a red house by the sea", "an old map of the world", "two birds")
MakeBare = Callable[[int], float]


class PictureSample(BaseModel, frozen=True):
    """One request of one level and round; seconds since the round's start.

    `start_s`: of arrivals at a rate when it was to come, however late it was sent.
    """

    round: int
    start_s: float
    end_s: float
    num_images: int = 0
    error: str | None = None


class PictureLevel(Loaded, frozen=True):
    """One load over all rounds; `durations_s` are the rounds'."""

    durations_s: tuple[float, ...]
    warmup_errors: tuple[str, ...] = ()
    samples: tuple[PictureSample, ...]

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def latency_s(self) -> Summary | None:
        """Returns the latencies of the answered requests."""
        return summarize(one.end_s - one.start_s for one in self.samples if one.error is None)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def images_per_s(self) -> tuple[float, ...]:
        """Returns the images per second of each round."""
        counts = [0] * len(self.durations_s)
        for one in self.samples:
            counts[one.round] += one.num_images
        return tuple(count / s for count, s in zip(counts, self.durations_s, strict=True))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def num_failed(self) -> int:
        """Requests that got no image."""
        return sum(one.error is not None for one in self.samples)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def most_in_flight(self) -> int:
        """How many requests were there at once at most, in any round."""
        return max(map(most_in_flight, self._spans), default=0)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def queue_grew(self) -> bool:
        """Returns whether the server did not keep up with the rate, in all rounds taken
        together.
        """
        return self.rate is not None and queue_grew(self._spans)

    @property
    def _spans(self) -> list[list[Span]]:
        spans: list[list[Span]] = [[] for _ in self.durations_s]
        for one in self.samples:
            spans[one.round].append((one.start_s, one.end_s))
        return spans

    @property
    def errors(self) -> list[str]:
        """One for each request that failed, the warm-up's too."""
        failed = [one.error for one in self.samples if one.error is not None]
        return [*self.warmup_errors, *failed]


class Pairs(BaseModel, frozen=True):
    """Seconds of single requests and of the bare pipeline's calls right beside them."""

    served_s: tuple[float, ...]
    bare_s: tuple[float, ...]

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def ratio_quartiles(self) -> tuple[float, float, float]:
        """Returns the quartiles of served over bare, pair by pair."""
        low, median, high = np.percentile(np.divide(self.served_s, self.bare_s), (25, 50, 75))
        return float(low), float(median), float(high)


class PictureReport(BaseModel, frozen=True):
    """The file that `--json` writes."""

    command: str
    url: str
    body: dict[str, Any]
    seed: int
    levels: tuple[PictureLevel, ...]
    pairs: Pairs | None = None


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """The plan of a measurement. `body`: fields of every request; each has its own prompt and seed.

    A load has its requests in each round. `seed` is that of the loads' arrivals.
    """

    url: str
    body: Mapping[str, Any]
    loads: Sequence[Load]
    seed: int = 0
    rounds: int = 3
    num_pairs: int = 0
    timeout_s: float = 600
    api_key: str | None = None
    transport: httpx.AsyncBaseTransport | None = field(default=None, repr=False)


def numbered(body: Mapping[str, object], number: int) -> dict[str, object]:
    """The body of one request."""
    return {"prompt": PROMPTS[number % len(PROMPTS)], "seed": number, **body}


class PictureBench:
    """One run against one server."""

    def __init__(self, plan: PicturePlan, client: httpx.AsyncClient) -> None:
        self._plan = plan
        self._client = client
        self._number = 0

    async def ask(self, round_: int, start_s: float, due_s: float | None = None) -> PictureSample:
        """One request; whatever fails is the sample's error. With `due_s` it starts then."""
        loop = asyncio.get_running_loop()
        self._number += 1
        body = numbered(self._plan.body, self._number)
        begun_s = loop.time() if due_s is None else due_s
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
            round=round_,
            start_s=begun_s - start_s,
            end_s=loop.time() - start_s,
            num_images=num_images,
            error=error,
        )

    async def run_round(
        self, load: Load, round_: int, num_requests: int
    ) -> tuple[float, list[PictureSample]]:
        """One level once: seconds, samples. Each round has arrivals of its own."""
        loop = asyncio.get_running_loop()
        samples: list[PictureSample] = []
        if isinstance(load, OpenLoop):
            load = replace(load, seed=load.seed + round_)
        start_s = loop.time()

        async def ask(_: int, due_s: float | None) -> None:
            samples.append(await self.ask(round_, start_s, due_s))

        await load.run(ask, range(num_requests))
        return loop.time() - start_s, samples

    async def levels(self) -> tuple[PictureLevel, ...]:
        """All levels, one after the other in each round; before the rounds each is warmed up."""
        loads = self._plan.loads
        warmups = [(await self.run_round(load, 0, load.num_warmups))[1] for load in loads]
        made: list[list[tuple[float, list[PictureSample]]]] = [[] for _ in loads]
        for round_ in range(self._plan.rounds):
            for load, rounds in zip(loads, made, strict=True):
                rounds.append(await self.run_round(load, round_, load.num_requests))
        return tuple(
            PictureLevel(
                concurrency=load.concurrency,
                rate=load.rate,
                durations_s=tuple(duration_s for duration_s, _ in rounds),
                warmup_errors=tuple(one.error for one in warmup if one.error is not None),
                samples=tuple(sample for _, samples in rounds for sample in samples),
            )
            for load, warmup, rounds in zip(loads, warmups, made, strict=True)
        )

    async def pairs(self, bare: MakeBare) -> Pairs:
        """Single requests in turns with the bare pipeline; who is first changes."""
        served_s, bare_s = [], []

        async def ask_server() -> None:
            sample = await self.ask(0, 0.0)
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
        command=command,
        url=plan.url,
        body=dict(plan.body),
        seed=plan.seed,
        levels=levels,
        pairs=pairs,
    )
