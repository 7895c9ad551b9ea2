"""GET /metrics of real stages: its counts are the client's, and the documentation lists it."""

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from importlib.metadata import packages_distributions, version
from typing import Any

import httpx
import pytest
from support.api.prompts import QUESTIONS
from support.repository.metrics_docs import DOCS, documented, exposed, families_in
from support.servers.server import SETTLE_S, TinyServer, decoded
from support.servers.snapshots import reported_page

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
HELLO = QUESTIONS[0].messages
TEXT, SPOKEN = "text", "text+audio"
AT_ONCE = 8
SHORT = {"max_completion_tokens": 6}
ENDLESS = {"max_completion_tokens": 900, "ignore_eos": True}
OF_THE_SERVER = (
    *("The gateway", "Stages", "Channels", "Processes"),
    *("Every stage", "Engines of vLLM", "Vocoders"),
)

# A sample: its name, and its labels but for `replica`, `engine`, `model_name`.
Sample = tuple[str, frozenset[tuple[str, str]]]
NOT_TOLD = {"replica", "engine", "model_name"}


def sample(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


def samples_in(page: str) -> Mapping[Sample, float]:
    """Return all of a page."""
    found = {}
    for family in families_in(page):
        for one in family.samples:
            labels = {name: value for name, value in one.labels.items() if name not in NOT_TOLD}
            found[sample(one.name, **labels)] = one.value
    return found


class Client:
    """Asks, and counts what it was told."""

    def __init__(self, server: TinyServer) -> None:
        self.server = server
        self.counted: defaultdict[Sample, float] = defaultdict(float)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._http = httpx.AsyncClient(timeout=600, base_url=server.url)

    async def ask(self, kind: Callable[["Client"], Awaitable[None]]) -> None:
        async with self._places:
            await kind(self)

    async def close(self) -> None:
        await self._http.aclose()

    def count(self, name: str, by: float = 1.0, /, **labels: str) -> None:
        self.counted[sample(name, **labels)] += by

    def ended(self, outcome: str, status: int) -> None:
        """An HTTP request has."""
        code = str(status)
        self.count("omnistage_requests_total", endpoint=CHAT, outcome=outcome, status=code)
        if outcome == "finished":
            self.count("omnistage_e2e_request_latency_seconds_count", endpoint=CHAT)

    def answered(self, outcome: str, modality: str = TEXT) -> None:
        """The stages had it, and so did the thinker."""
        self.count("omnistage_answers_total", modality=modality, outcome=outcome)
        self.count("omnistage_request_wait_seconds_count", modality=modality)
        self.count("omnistage_stage_requests_total", stage="thinker")
        self.count("omnistage_stage_request_seconds_count", stage="thinker")
        if outcome != "refused":
            self.count("omnistage_time_to_first_token_seconds_count", modality=modality)

    def used(self, usage: Mapping[str, Any], modality: str = TEXT) -> None:
        """A finished answer's tokens; its codec frames are not those of a text."""
        num_in = usage["prompt_tokens"]
        num_out = usage["completion_tokens"] - usage["completion_tokens_details"]["audio_tokens"]
        self.count("omnistage_prompt_tokens_total", num_in, modality=modality)
        self.count("omnistage_generation_tokens_total", num_out, modality=modality)
        self.count("vllm:prompt_tokens_total", num_in, stage="thinker")
        self.count("vllm:generation_tokens_total", num_out, stage="thinker")
        self.count("vllm:e2e_request_latency_seconds_count", stage="thinker")
        self.count("vllm:time_to_first_token_seconds_count", stage="thinker")

    # What is asked

    def body(self, **more: Any) -> dict[str, Any]:
        body = {"model": self.server.model, "messages": HELLO, "temperature": 0}
        return {**body, **SHORT, **more}

    async def finish(self) -> None:
        answer = await self._http.post(CHAT, json=self.body())
        assert answer.status_code == 200, answer.text
        self.ended("finished", 200)
        self.answered("finished")
        self.used(answer.json()["usage"])

    async def stream(self) -> None:
        body = self.body(stream_options={"include_usage": True})
        async with aclosing(self._events(body)) as events:
            usage = [event["usage"] async for event in events if event.get("usage")]
        self.ended("finished", 200)
        self.answered("finished")
        self.used(usage[-1])

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        asking = self._http.stream("POST", CHAT, json={**body, "stream": True})
        async with asking as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield decoded(line)

    async def speak(self) -> None:
        reply = await self.server.ask(HELLO, **SHORT)
        num_frames = len(reply.codes)
        assert num_frames
        self.ended("finished", 200)
        self.answered("finished", SPOKEN)
        self.used(reply.raw["usage"], SPOKEN)
        for stage in ("talker", "code2wav"):
            self.count("omnistage_stage_requests_total", stage=stage)
            self.count("omnistage_stage_request_seconds_count", stage=stage)
        self.count("vllm:e2e_request_latency_seconds_count", stage="talker")
        for name in ("time_to_first_audio_seconds", "real_time_factor", "audio_stall_seconds"):
            self.count(f"omnistage_{name}_count", modality=SPOKEN)
        self.count("omnistage_audio_seconds_total", len(reply.pcm) / 24_000, modality=SPOKEN)
        self.count("omnistage_decoded_frames_total", num_frames, stage="code2wav")

    async def cancel(self) -> None:
        """Hang up at the first text."""
        async with aclosing(self._events(self.body(**ENDLESS))) as events:
            async for event in events:
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    break
        self.ended("cancelled", 200)
        self.answered("cancelled")
        self.count("vllm:time_to_first_token_seconds_count", stage="thinker")

    async def refused_by_gateway(self) -> None:
        answer = await self._http.post(CHAT, json=self.body(temperature=9))
        assert answer.status_code == 400
        self.ended("refused", 400)

    async def refused_by_stage(self) -> None:
        long = [{"role": "user", "content": "long " * 3000}]
        answer = await self._http.post(CHAT, json=self.body(messages=long))
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        self.ended("refused", 400)
        self.answered("refused")


MIX = [
    *[Client.finish] * 16,
    *[Client.stream] * 8,
    *[Client.speak] * 6,
    *[Client.cancel] * 8,
    *[Client.refused_by_gateway] * 6,
    *[Client.refused_by_stage] * 6,
]


async def test_after_50_mixed_requests_every_count_is_the_clients(server: TinyServer) -> None:
    """Of vLLM's, those that a client can know: it does not see all tokens that it hung up on."""
    assert len(MIX) == 50
    client = Client(server)
    before = samples_in(await asyncio.to_thread(reported_page, server))
    order = [MIX[7 * index % 50] for index in range(50)]
    assert Counter(order) == Counter(MIX)
    await asyncio.gather(*(client.ask(kind) for kind in order))
    await client.close()
    counted = dict(client.counted)
    del counted[sample("vllm:generation_tokens_total", stage="thinker")]  # also of the cancelled
    prompts = sample("vllm:prompt_tokens_total", stage="thinker")
    counted[prompts] += (
        counted[prompts] / 30 * 8
    )  # the 30 finished and the 8 cancelled ask the same
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = samples_in(await asyncio.to_thread(reported_page, server))
        if (grown := growth(before, after, counted)) == pytest.approx(counted):
            break
        assert time.monotonic() < deadline, different(grown, counted)
    everything = {one for one in after if one[0].startswith("omnistage_requests_total")}
    assert sum(after[one] - before.get(one, 0.0) for one in everything) == 50
    for name in ("num_requests_running", "num_requests_waiting"):
        assert after[sample(f"omnistage_{name}")] == 0
    for (name, labels), value in after.items():
        if name == "omnistage_channel_backlog_chunks":
            assert value == 0, labels


def growth(
    before: Mapping[Sample, float], after: Mapping[Sample, float], wanted: Mapping[Sample, float]
) -> dict[Sample, float]:
    return {one: after.get(one, 0.0) - before.get(one, 0.0) for one in wanted}


def different(
    grown: Mapping[Sample, float], wanted: Mapping[Sample, float]
) -> dict[Sample, tuple[float, float]]:
    return {one: (grown[one], wanted[one]) for one in wanted if grown[one] != wanted[one]}


def test_the_documentation_lists_the_page_of_real_stages(server: TinyServer) -> None:
    """With its labels, if it has a sample; GPUs are not everywhere, and vLLM may be another."""
    page = exposed(httpx.get(f"{server.url}/metrics").text)
    page = {name: about for name, about in page.items() if "omnistage_gpu_" not in name}
    listed = documented(*OF_THE_SERVER)
    if not is_documented_vllm():
        page, listed = ({n: one[n] for n in one if "vllm:" not in n} for one in (page, listed))
    kinds = [{name: kind for name, (kind, _) in one.items()} for one in (page, listed)]
    assert kinds[0] == kinds[1]
    settings = page.pop("vllm:cache_config_info", None)  # it has a label for each setting
    assert settings is None or set(settings[1]) > set(listed["vllm:cache_config_info"][1])
    wrong = {name for name, (_, has) in page.items() if has and has != listed[name][1]}
    assert not wrong


def is_documented_vllm() -> bool:
    """Whether the one that is installed is the one whose metrics are listed."""
    (named,) = re.findall(r"^These are vLLM (\d+\.\d+)'s metrics", DOCS.read_text(), re.MULTILINE)
    (package,) = set(packages_distributions()["vllm"])
    return version(package).startswith(f"{named}.")
