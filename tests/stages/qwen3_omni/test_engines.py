"""The bridge on real engines: late inputs, the gate, and the thinker's tap."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from support.prompts import QUESTIONS, Question, image_part, picture, plain, sound, sound_part
from support.prompts import text as text_part
from support.reference import Reference
from support.taken_media import opened_with_media
from support.text_stage import ENGINE as TEXT_ENGINE
from support.thinker_stage import ThinkerHarness, positions_of, rows_of, running_thinker
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.edge import EDGE, Edge, Open, Rows, StageTokens
from omnistage.stages.messages.to_gateway import TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.vllm.models.rope import Grid
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.vllm.step.step import OVERDUE
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

LONGEST = 4096  # the tiny checkpoint's
NEXT_CHUNK_S = 10.0
ENGINE: dict[str, Any] = {**TEXT_ENGINE, "kv_cache_memory_bytes": 64 << 20}
SPOKEN = [
    ("Hello, who are you?", 30),
    ("What is a fox to a hound? " * 5, 20),
    ("Hm", 25),
    ("Tell me a tale of two cities", 40),
    ("And again", 12),
    ("Six of them then", 33),
]

PATH = ["thinker", "talker", "code2wav"]


GRAPH = """
stages:
  thinker: {kind: qwen3_omni.thinker}
  talker: {kind: qwen3_omni.talker}
  code2wav: {kind: qwen3_omni.code2wav}
edges:
  - {from: thinker, to: talker, hidden_states: all}
  - {from: talker, to: code2wav}
outputs: {text: thinker, audio: code2wav}
"""


class Harness:
    """A talker engine with its feed and its results, and the reference's results."""

    def __init__(
        self,
        engine: Any,
        feed: Sender,
        rows: Sender,
        results: Receiver,
        reference: Reference,
        ledger: Ledger,
    ) -> None:
        self.engine = engine
        self.feed = feed
        self.rows = rows
        self.results = results
        self.ledger = ledger
        self.reference = reference
        self.ids = SpeechIds.of(reference.model.config)
        self._expected: dict[str, tuple[list[int], list[int], npt.NDArray[np.int64]]] = {}

    def expected(self, text: str, num_frames: int) -> Any:
        """Prompt ids, spoken tokens and codes of the reference."""
        key = f"{num_frames} {text}"
        if key not in self._expected:
            question = plain("spoken", ("user", text))
            answer = self.reference.answer(question, 12, num_frames)
            prompt = self.reference.inputs(question)["input_ids"][0].tolist()
            spoken = self.reference.spoken
            self._expected[key] = prompt, spoken, answer.codes
        return self._expected[key]

    def options(
        self, name: str, prompt_ids: Sequence[int], grids: Sequence[Grid] = ()
    ) -> tuple[RequestOptions, int]:
        """The options of a request, and the length of its prompt."""
        from omnistage.stages.qwen3_omni.talker import request_options

        prompt = talker_prompt(self.ids, prompt_ids, grids, "ethan")
        return request_options(name, self.ids, prompt), len(prompt)

    async def generate(
        self, name: str, prompt_ids: Sequence[int], num_frames: int, grids: Sequence[Grid] = ()
    ) -> tuple[float, object]:
        """Run a request to its end; when its first step was scheduled, and why it stopped."""
        from omnistage.stages.vllm.compat import SamplingParams

        options, length = self.options(name, prompt_ids, grids)
        params = SamplingParams(
            temperature=0,
            repetition_penalty=1.05,
            max_tokens=num_frames + 1,
            stop_token_ids=[self.ids.codec_eos],
            detokenize=False,
            extra_args=options.extra_args(),
        )
        prompt = {"prompt_token_ids": [self.ids.codec_pad] * length}
        begun_s, reason = 0.0, None
        async for output in self.engine.generate(prompt, params, name):
            begun_s = begun_s or output.metrics.scheduled_ts
            reason = output.outputs[0].stop_reason
        return begun_s, reason

    async def send(
        self, name: str, tokens: Sequence[int], lag_s: float, is_whole: bool = True
    ) -> None:
        """Feed the spoken tokens one by one."""
        for number, token in enumerate(tokens):
            await asyncio.sleep(lag_s)
            value = {"tokens": Tensor.from_numpy(np.array([token], np.int32))}
            last = is_whole and number == len(tokens) - 1
            self.feed.send(Chunk(name, StageTokens(), number, value, last))

    async def codes(self, names: set[str]) -> dict[str, npt.NDArray[np.int32]]:
        """What was published for these requests, each to its last chunk."""
        found: dict[str, list[npt.NDArray[np.int32]]] = {name: [] for name in names}
        waiting = set(names)
        while waiting:
            chunk = self.results.receive()
            if chunk is None:
                await asyncio.sleep(0.005)
                continue
            self.results.grant(chunk.request_id)
            if chunk.request_id in found and "codes" in chunk.tensors:
                found[chunk.request_id].append(chunk.tensors["codes"].numpy())
            if chunk.last:
                waiting.discard(chunk.request_id)
        return {name: np.concatenate(parts) for name, parts in found.items()}


@asynccontextmanager
async def running_talker(
    name: str, folder: Path, run: Path, reference: Reference, **engine: Any
) -> AsyncIterator[Harness]:
    """A talker's engine with channels and a ledger of this name."""
    from omnistage.stages.qwen3_omni.step_schema import talker_schema
    from omnistage.stages.qwen3_omni.talker_model import talker_config
    from omnistage.stages.vllm.compat import AsyncLLM
    from omnistage.stages.vllm.engine.engine import make_engine

    connector = make_connector("shm", run, {})
    addresses = [f"{name}.{end}" for end in ("feed", "rows", "codes")]
    for address in addresses:
        connector.create(address)
    ports = [Port(address, "shm", str(run), {}) for address in addresses]
    bridge = BridgeConfig(
        talker_schema(reference.model.config.talker_config),
        feeds=ports[:2],
        next_chunk_s=NEXT_CHUNK_S,
        sinks=[Sink("code2wav", ports[2], [2, 4, 8])],
        ledger=str(run / f"{name}.held"),
    )
    options = {**ENGINE, "skip_tokenizer_init": True, "enable_prefix_caching": False, **engine}
    unlimited = make_connector("shm", run, {"credit": 0})
    feed, rows = (unlimited.sender(address) for address in addresses[:2])
    results = connector.receiver(addresses[2], EDGE)
    llm = make_engine(AsyncLLM, str(folder), options, bridge, talker_config)
    yield Harness(llm, feed, rows, results, reference, Ledger(run / f"{name}.held"))
    llm.shutdown()
    for end in (feed, rows, results):
        end.close()
    for address in addresses:
        connector.destroy(address)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def talker(
    tiny_checkpoint: Path, run_directory: Path, reference: Reference, cpu_engine: None
) -> AsyncIterator[Harness]:
    async with running_talker("talker", tiny_checkpoint, run_directory, reference) as harness:
        yield harness


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def wide_talker(
    tiny_checkpoint: Path, run_directory: Path, reference: Reference, cpu_engine: None
) -> AsyncIterator[Harness]:
    """One whose step takes the longest prompt whole."""
    sizes = {"max_model_len": LONGEST, "max_num_batched_tokens": LONGEST}
    async with running_talker("wide", tiny_checkpoint, run_directory, reference, **sizes) as wide:
        yield wide


@pytest.mark.parametrize("lags_s", [(0.0,), (0.0, 0.01, 0.03)], ids=["up front", "late"])
async def test_codes_equal_the_reference_however_late_the_tokens_come(
    lags_s: tuple[float, ...], talker: Harness
) -> None:
    names = [f"late-{lags_s}-{number}" for number in range(len(SPOKEN))]
    jobs: list[Coroutine[Any, Any, object]] = []
    for number, (name, (text, num_frames)) in enumerate(zip(names, SPOKEN, strict=True)):
        prompt, spoken, _ = talker.expected(text, num_frames)
        jobs.append(talker.generate(name, prompt, num_frames))
        jobs.append(talker.send(name, spoken, lags_s[number % len(lags_s)]))
    await asyncio.gather(*jobs)
    codes = await talker.codes(set(names))
    for name, (text, num_frames) in zip(names, SPOKEN, strict=True):
        assert np.array_equal(codes[name], talker.expected(text, num_frames)[2]), name


async def test_a_held_request_can_be_aborted_and_its_row_reused(talker: Harness) -> None:
    text, num_frames = SPOKEN[0]
    prompt, spoken, expected = talker.expected(text, num_frames)
    stuck = [
        asyncio.create_task(talker.generate(f"stuck-{n}", prompt, num_frames)) for n in range(6)
    ]
    sent = [talker.send(f"stuck-{n}", spoken[:1], 0.0, is_whole=False) for n in range(3)]
    await asyncio.gather(*sent)
    await asyncio.sleep(0.3)
    assert not any(task.done() for task in stuck)
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    names = {f"after-{n}" for n in range(4)}
    await asyncio.gather(
        *(talker.generate(name, prompt, num_frames) for name in names),
        *(talker.send(name, spoken, 0.0) for name in names),
    )
    for codes in (await talker.codes(names)).values():
        assert np.array_equal(codes, expected)


WORDS = "Tell me more about the fox and the hound. "
PICTURES = [image_part(picture(256, 256, seed)) for seed in range(8)]  # of 64 tokens
NUM_FRAMES = 20


class Heard:
    """All that a thinker sent of one prompt, so that it can be sent to talkers again."""

    def __init__(self, is_held: bool) -> None:
        """`is_held`: nothing is taken behind half of the rows as long as it is set."""
        self.is_held = is_held
        self.opened: Chunk[Edge] | None = None
        self.chunks: list[Chunk[Edge]] = []
        self.last_row_s = 0.0  # when the last hidden row of the prompt had come

    @property
    def prompt(self) -> tuple[list[int], list[Grid]]:
        """Its ids, and where its images are."""
        assert self.opened is not None
        assert isinstance(self.opened.message, Open)
        grids = self.opened.message.read(ThinkerPrompt).grids
        return self.opened.tensors["prompt"].numpy().tolist(), grids

    @property
    def has_half(self) -> bool:
        """Whether a chunk of rows has come for each image."""
        return sum("hidden" in chunk.tensors for chunk in self.chunks) >= len(PICTURES)

    @property
    def is_whole(self) -> bool:
        """Whether its last token and its last rows have come."""
        return {type(chunk.message) for chunk in self.chunks if chunk.last} == {Rows, StageTokens}

    def listen(self, name: str, thinker: "ThinkerHarness", talker: Harness) -> None:
        """Take what has come, and hand it on."""
        for receiver in (thinker.opens, thinker.rows, thinker.feed):
            while not (self.is_held and self.has_half):
                if (chunk := receiver.receive()) is None:
                    break
                receiver.grant(chunk.request_id)
                if chunk.request_id != name:
                    continue
                if isinstance(chunk.message, Open):
                    self.opened = chunk
                    continue
                self.chunks.append(chunk)
                self.hand_on(chunk, name, talker)
                if "hidden" in chunk.tensors:
                    self.last_row_s = time.monotonic()

    @staticmethod
    def hand_on(chunk: Chunk[Edge], name: str, talker: Harness) -> None:
        """As a chunk of the request of this name."""
        sender = talker.rows if isinstance(chunk.message, Rows) else talker.feed
        sender.send(Chunk(name, chunk.message, chunk.index, chunk.tensors, chunk.last))


async def hear(
    thinker: "ThinkerHarness", talker: Harness, name: str, messages: list[Any]
) -> tuple[Heard, float]:
    """Let both work at one request; what the thinker sent, and when the talker began.

    Behind half of the rows it gets no others before it has begun.
    """
    heard = Heard(is_held=True)
    body = {"messages": messages, "temperature": 0, "max_completion_tokens": 12}
    serving = asyncio.create_task(
        thinker.stage.serve(Opened(name, Request(Chat(body), ["text", "audio"], PATH)))
    )
    speaking: asyncio.Task[tuple[float, object]] | None = None
    while not heard.is_whole:
        heard.listen(name, thinker, talker)
        if speaking is None and heard.opened is not None:
            ids, grids = heard.prompt
            speaking = asyncio.create_task(talker.generate(name, ids, NUM_FRAMES, grids))
        if heard.is_held and heard.has_half:
            await until(lambda: held(talker).get("blocks"))
            heard.is_held = False
        await asyncio.sleep(0.001)
    await serving
    assert speaking is not None
    begun_s, _ = await speaking
    return heard, begun_s


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def overlapped(
    thinker: "ThinkerHarness", wide_talker: Harness
) -> tuple[Heard, float, npt.NDArray[np.int32]]:
    """A prompt of 4k tokens that both read at once: what was sent, when it began, its codes."""
    parts = [part for image in PICTURES for part in (text_part(WORDS * 10), image)]
    messages = [{"role": "user", "content": [*parts, text_part("What is it?")]}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
        heard, begun_s = await hear(thinker, wide_talker, "long", messages)
    return heard, begun_s, (await wide_talker.codes({"long"}))["long"]


Overlapped = tuple[Heard, float, npt.NDArray[np.int32]]


async def test_the_talker_begins_to_read_a_long_prompt_before_the_thinker_has_read_it(
    overlapped: Overlapped,
) -> None:
    heard, begun_s, codes = overlapped
    assert 3500 < len(heard.prompt[0]) < LONGEST - NUM_FRAMES
    assert sum("hidden" in chunk.tensors for chunk in heard.chunks) > len(PICTURES)
    assert begun_s < heard.last_row_s
    assert len(codes) == NUM_FRAMES


async def test_codes_of_a_prompt_read_in_parts_are_those_of_one_read_whole(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard, _, codes = overlapped
    ids, grids = heard.prompt
    for chunk in heard.chunks:
        heard.hand_on(chunk, "whole", wide_talker)
    await wide_talker.generate("whole", ids, NUM_FRAMES, grids)
    assert np.array_equal((await wide_talker.codes({"whole"}))["whole"], codes)


async def test_many_prompts_in_parts_at_once_have_the_same_codes(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard, _, codes = overlapped
    ids, grids = heard.prompt
    names = {f"many-{number}" for number in range(6)}

    async def feed(name: str, lag_s: float) -> None:
        for chunk in heard.chunks:
            heard.hand_on(chunk, name, wide_talker)
            await asyncio.sleep(lag_s)

    await asyncio.gather(
        *(wide_talker.generate(name, ids, NUM_FRAMES, grids) for name in names),
        *(feed(name, 0.004 * number) for number, name in enumerate(sorted(names))),
    )
    for name, found in (await wide_talker.codes(names)).items():
        assert np.array_equal(found, codes), name


def first_half(heard: Heard) -> Sequence[Chunk[Edge]]:
    """Rows of the first images, and no token."""
    rows = [chunk for chunk in heard.chunks if "hidden" in chunk.tensors]
    return rows[: len(rows) // 2]


def held(talker: Harness) -> Mapping[str, int]:
    """What the engine holds for requests, as far as it is not zero."""
    return {what: count for what, count in talker.ledger.read().items() if count}


async def test_media_that_the_engine_has_lost_are_sent_again(thinker: ThinkerHarness) -> None:
    """As after a cancel between the front, which takes them for sent, and the engine."""

    async def asked(name: str) -> list[int]:
        content = [PICTURES[0], sound_part(sound(16_000)), text_part("What is it?")]
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "temperature": 0, "max_completion_tokens": 12}
        opened = opened_with_media(name, Request(Chat(body), ["text"], PATH[:1]))
        await thinker.stage.serve(opened)
        await until(lambda: thinker.has_last(name))
        return thinker.token_ids(name)

    before = await asked("seen")
    assert before
    await thinker.stage._engine.engine_core.reset_mm_cache_async()
    assert await asked("lost") == before
    heads = [
        choice["delta"].get("role")
        for chunk in thinker.got["lost"]
        if isinstance(chunk.message, TextDelta)
        for choice in chunk.message.chunk["choices"]
    ]
    assert heads.count("assistant") == 1


async def test_a_cancel_in_the_middle_of_a_prompt_leaves_nothing(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard = overlapped[0]
    ids, grids = heard.prompt
    names = [f"cancelled-{number}" for number in range(4)]
    tasks = [
        asyncio.create_task(wide_talker.generate(name, ids, NUM_FRAMES, grids)) for name in names
    ]
    for name in names:
        for chunk in first_half(heard):
            heard.hand_on(chunk, name, wide_talker)
    await until(lambda: held(wide_talker).get("rows", 0) == 2)  # half of the seats
    assert held(wide_talker)["blocks"] > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    drained = asyncio.create_task(wide_talker.codes({"nobody"}))  # gives credit back
    try:
        await until(lambda: not held(wide_talker))
    finally:
        drained.cancel()


async def test_a_prompt_whose_rest_never_comes_fails_by_its_deadline(
    overlapped: Overlapped, wide_talker: Harness
) -> None:
    heard = overlapped[0]
    ids, grids = heard.prompt
    for chunk in first_half(heard):
        heard.hand_on(chunk, "stuck", wide_talker)
    began = time.monotonic()
    _, reason = await wide_talker.generate("stuck", ids, NUM_FRAMES, grids)
    assert reason == OVERDUE
    assert time.monotonic() - began >= NEXT_CHUNK_S
    drained = asyncio.create_task(wide_talker.codes({"nobody"}))
    try:
        await until(lambda: not held(wide_talker))
    finally:
        drained.cancel()


def check_rows(chunks: list[Chunk[Edge]], expected: torch.Tensor) -> None:
    """Every position once, in order, and each row as the reference has it."""
    assert positions_of(chunks) == list(range(len(expected)))
    parts = [chunk.tensors["hidden"].numpy().copy() for chunk in chunks if chunk.tensors]
    found = torch.from_numpy(np.concatenate(parts))
    # Images differ most: their encoders add in another order.
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


def greedy(question: Question, *outputs: str) -> Request:
    body = {"messages": question.messages, "temperature": 0, "max_completion_tokens": 8}
    path = PATH if "audio" in outputs else PATH[:1]
    return Request(Chat(body), list(outputs), path)


@pytest.mark.parametrize("question", QUESTIONS[3:6], ids=lambda q: q.name)
async def test_the_tap_exports_every_step_as_the_reference_has_it(
    question: Question, thinker: Any, reference: Reference
) -> None:
    name = f"tap-{question.name}"
    await thinker.stage.serve(opened_with_media(name, greedy(question, "text", "audio")))
    found = await rows_of(thinker, name)
    assert set(found) == {name}
    check_rows(found[name], hidden_states(reference, question, 8))


async def test_the_tap_exports_several_requests_at_once_each_as_alone(
    thinker: Any, reference: Reference
) -> None:
    asked = {f"beside-{question.name}": question for question in QUESTIONS[:6]}
    serving = (
        thinker.stage.serve(opened_with_media(name, greedy(question, "text", "audio")))
        for name, question in asked.items()
    )
    _, found = await asyncio.gather(asyncio.gather(*serving), rows_of(thinker, *asked))
    for name, question in asked.items():
        check_rows(found[name], hidden_states(reference, question, 8))


async def test_an_answer_that_is_not_spoken_sends_no_rows(thinker: Any) -> None:
    """The talker has no such request: it would keep them for nobody."""
    await thinker.stage.serve(opened_with_media("unspoken", greedy(QUESTIONS[3], "text")))
    await thinker.stage.serve(opened_with_media("spoken", greedy(QUESTIONS[3], "text", "audio")))
    assert set(await rows_of(thinker, "spoken")) == {"spoken"}


async def test_only_media_positions_leave_and_none_of_a_text_prompt(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
    for name, question in (("text-only", QUESTIONS[0]), ("media", QUESTIONS[3])):
        await thinker.stage.serve(opened_with_media(name, greedy(question, "text", "audio")))
    found = await rows_of(thinker, "media")
    assert set(found) == {"media"}
    positions = positions_of(found["media"])
    assert len(positions) == 4
    assert positions == sorted(set(positions))


NUM_TOKENS = 400
WINDOW = 8


def long_answer(name: str) -> Opened:
    """A request for many tokens, the same each time."""
    sampling = {"temperature": 0, "max_completion_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {"messages": QUESTIONS[0].messages, **sampling}
    return Opened(name, Request(Chat(body), ["text"]))


async def test_a_client_that_reads_nothing_holds_its_own_request_only(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on; what it makes is one output that grows, at most to the longest answer."""
    monkeypatch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
    monkeypatch.setattr("omnistage.connectors.sender.MAX_BACKLOG_CHUNKS", 16)
    thinker.unread = {"unread"}
    held = asyncio.create_task(thinker.stage.serve(long_answer("unread")))
    await thinker.stage.serve(long_answer("read"))
    await until(lambda: thinker.has_last("read"))
    assert len(thinker.token_ids("read")) == NUM_TOKENS
    assert len(thinker.got["unread"]) == WINDOW
    assert len(thinker.token_ids("unread")) < NUM_TOKENS
    assert thinker.ports.room.num_waiting == 1
    assert not held.done()
    await thinker.stage.alive()
    thinker.unread.clear()
    thinker.outputs.forget("unread")
    await asyncio.wait_for(held, 600)
    await until(lambda: thinker.has_last("unread"))
    assert thinker.token_ids("unread") == thinker.token_ids("read")
    assert len(thinker.got["unread"]) < 2 * WINDOW
    assert thinker.num_unfinished == 0


async def test_a_cancel_of_a_held_answer_frees_it(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.ports.downstream[0], "all_hidden_states", False)
    thinker.unread = {"cancelled"}
    held = asyncio.create_task(thinker.stage.serve(long_answer("cancelled")))
    await until(lambda: thinker.ports.room.num_waiting == 1)
    assert thinker.num_unfinished == 1
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    await until(lambda: thinker.num_unfinished == 0)
    assert thinker.ports.room.num_waiting == 0
    thinker.ports.outputs.forget("cancelled")
    thinker.outputs.forget("cancelled")
    await until(lambda: thinker.ports.outputs.num_requests == 0)


@torch.no_grad()
def hidden_states(reference: Reference, question: Question, num_tokens: int) -> torch.Tensor:
    """Of the tapped layer, prompt and every token that was fed back."""
    layer = reference.model.config.talker_config.accept_hidden_layer
    result = reference.model.thinker.generate(
        **reference.inputs(question),
        max_new_tokens=num_tokens,
        do_sample=False,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    states: torch.Tensor = torch.cat([step[layer] for step in result.hidden_states], dim=1)[0]
    return states


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def thinker(
    tiny_checkpoint: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    """The first stage of a graph whose edge wants every hidden state."""
    limits = {"image": len(PICTURES), "audio": 2, "video": 1}
    engine = {**ENGINE, "max_model_len": LONGEST, "limit_mm_per_prompt": limits}
    async with running_thinker(GRAPH, tiny_checkpoint, run_directory, engine) as harness:
        yield harness
