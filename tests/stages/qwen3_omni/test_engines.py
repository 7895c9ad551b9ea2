"""The bridge on real engines: late inputs, the gate, and the thinker's tap."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from support.prompts import QUESTIONS, Question, plain
from support.reference import Reference
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.server.runtime.channels import Channels
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stages.messages.edge import EDGE, Edge, Tokens
from omnistage.stages.messages.to_gateway import TO_GATEWAY, TextDelta, ToGateway
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt
from omnistage.stages.vllm.ports import BridgeConfig
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Opened
from omnistage.stages.worker.stage_worker import StageWorker

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 64 << 20,
}
SPOKEN = [
    ("Hello, who are you?", 30),
    ("What is a fox to a hound? " * 5, 20),
    ("Hm", 25),
    ("Tell me a tale of two cities", 40),
    ("And again", 12),
    ("Six of them then", 33),
]


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

    def __init__(self, engine: Any, feed: Sender, results: Receiver, reference: Reference) -> None:
        self.engine = engine
        self.feed = feed
        self.results = results
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

    def options(self, name: str, prompt_ids: Sequence[int]) -> tuple[dict[str, Any], int]:
        """A request's part of extra_args, and its prompt's length."""
        from omnistage.stages.qwen3_omni.talker import request_options

        prompt = talker_prompt(self.ids, prompt_ids, [], "ethan")
        options = request_options(name, self.ids, prompt)
        return {**options, "sampling": {"temperature": 0}}, len(prompt)

    async def generate(self, name: str, prompt_ids: Sequence[int], num_frames: int) -> None:
        """Run a request to its end."""
        from omnistage.stages.vllm.compat import SamplingParams

        options, length = self.options(name, prompt_ids)
        params = SamplingParams(
            temperature=0,
            repetition_penalty=1.05,
            max_tokens=num_frames + 1,
            stop_token_ids=[self.ids.codec_eos],
            detokenize=False,
            extra_args={"omnistage": options},
        )
        prompt = {"prompt_token_ids": [self.ids.codec_pad] * length}
        async for _ in self.engine.generate(prompt, params, name):
            pass

    async def send(
        self, name: str, tokens: Sequence[int], lag_s: float, is_whole: bool = True
    ) -> None:
        """Feed the spoken tokens one by one."""
        for number, token in enumerate(tokens):
            await asyncio.sleep(lag_s)
            value = {"tokens": Tensor.from_numpy(np.array([token], np.int32))}
            last = is_whole and number == len(tokens) - 1
            self.feed.send(Chunk(name, Tokens(), number, value, last))

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


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def talker(
    tiny_checkpoint: Path, run_directory: Path, reference: Reference, cpu_engine: None
) -> AsyncIterator[Harness]:
    from omnistage.stages.qwen3_omni.step_schema import talker_schema
    from omnistage.stages.qwen3_omni.talker_model import talker_config
    from omnistage.stages.vllm.compat import AsyncLLM
    from omnistage.stages.vllm.engine import make_engine

    connector = make_connector("shm", run_directory, {})
    for address in ("feed", "rows", "codes"):
        connector.create(address)

    def port(address: str) -> Port:
        return Port(address, "shm", str(run_directory), {})

    bridge = BridgeConfig(
        talker_schema(reference.model.config.talker_config),
        feeds=[port("feed"), port("rows")],
        sink=port("codes"),
        chunk_sizes=[2, 4, 8],
    )
    options = {**ENGINE, "skip_tokenizer_init": True, "enable_prefix_caching": False}
    feed = make_connector("shm", run_directory, {"credit": 0}).sender("feed")
    results = connector.receiver("codes", EDGE)
    engine = make_engine(AsyncLLM, str(tiny_checkpoint), options, bridge, talker_config)
    yield Harness(engine, feed, results, reference)
    engine.shutdown()
    feed.close()
    results.close()
    for address in ("feed", "rows", "codes"):
        connector.destroy(address)


@pytest.mark.parametrize("lags_s", [(0.0,), (0.0, 0.01, 0.03)], ids=["up front", "late"])
async def test_codes_equal_the_reference_however_late_the_tokens_come(
    lags_s: tuple[float, ...], talker: Harness
) -> None:
    names = [f"late-{lags_s}-{number}" for number in range(len(SPOKEN))]
    jobs = []
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


@pytest.mark.parametrize("question", QUESTIONS[3:6], ids=lambda q: q.name)
async def test_the_tap_exports_every_step_as_the_reference_has_it(
    question: Question, thinker: Any, reference: Reference
) -> None:
    name = f"tap-{question.name}"
    body = {"messages": question.messages, "temperature": 0, "max_completion_tokens": 8}
    await thinker.stage.serve(Opened(name, Request(body, ["text", "audio"])))
    expected = hidden_states(reference, question, 8)
    found = torch.full_like(expected, torch.nan)
    is_last = False
    while not is_last:
        chunk = thinker.rows.receive()
        if chunk is None:
            await asyncio.sleep(0.005)
            continue
        thinker.rows.grant(chunk.request_id)
        assert chunk.request_id == name
        is_last = chunk.last
        if "hidden" in chunk.tensors:
            rows = torch.from_numpy(chunk.tensors["hidden"].numpy().copy())
            found[chunk.tensors["positions"].numpy().astype(np.int64)] = rows
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


async def test_an_answer_that_is_not_spoken_sends_no_rows(thinker: Any) -> None:
    """The talker has no such request: it would keep them for nobody."""
    body = {"messages": QUESTIONS[3].messages, "temperature": 0, "max_completion_tokens": 8}
    await thinker.stage.serve(Opened("unspoken", Request(body, ["text"])))
    await thinker.stage.serve(Opened("spoken", Request(body, ["text", "audio"])))
    names = set()
    is_last = False
    while not is_last:
        chunk = thinker.rows.receive()
        if chunk is None:
            await asyncio.sleep(0.005)
            continue
        thinker.rows.grant(chunk.request_id)
        names.add(chunk.request_id)
        is_last = chunk.last
    assert names == {"spoken"}


async def test_only_media_positions_leave_and_none_of_a_text_prompt(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.ports, "exports_all_hidden_states", False)
    body = {"messages": QUESTIONS[0].messages, "temperature": 0, "max_completion_tokens": 8}
    with_media = {**body, "messages": QUESTIONS[3].messages}
    for name, asked in (("text-only", body), ("media", with_media)):
        await thinker.stage.serve(Opened(name, Request(asked, ["text", "audio"])))
    positions: list[int] = []
    is_last = False
    while not is_last:
        chunk = thinker.rows.receive()
        if chunk is None:
            await asyncio.sleep(0.005)
            continue
        thinker.rows.grant(chunk.request_id)
        assert chunk.request_id == "media"
        is_last = chunk.last
        if "positions" in chunk.tensors:
            positions += chunk.tensors["positions"].numpy().tolist()
    assert len(positions) == 4
    assert positions == sorted(set(positions))


NUM_TOKENS = 400
WINDOW = 8


def long_answer(name: str) -> Opened:
    """A request for many tokens, the same each time."""
    sampling = {"temperature": 0, "max_completion_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {"messages": QUESTIONS[0].messages, **sampling}
    return Opened(name, Request(body, ["text"]))


async def test_a_client_that_reads_nothing_holds_its_own_request_only(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on; what it makes is one output that grows, at most to the longest answer."""
    monkeypatch.setattr(thinker.ports, "exports_all_hidden_states", False)
    monkeypatch.setattr("omnistage.connectors.sender.MAX_BACKLOG_CHUNKS", 16)
    thinker.unread = {"unread"}
    held = asyncio.create_task(thinker.stage.serve(long_answer("unread")))
    await thinker.stage.serve(long_answer("read"))
    await until(lambda: thinker.got["read"][-1].last)
    assert len(thinker.token_ids("read")) == NUM_TOKENS
    assert len(thinker.got["unread"]) == WINDOW
    assert len(thinker.token_ids("unread")) < NUM_TOKENS / 2
    assert thinker.ports.room.num_waiting == 1
    assert not held.done()
    await thinker.stage.alive()
    thinker.unread.clear()
    thinker.outputs.forget("unread")
    await asyncio.wait_for(held, 60)
    await until(lambda: thinker.got["unread"][-1].last)
    assert thinker.token_ids("unread") == thinker.token_ids("read")
    assert len(thinker.got["unread"]) < 2 * WINDOW
    assert thinker.num_unfinished == 0


async def test_a_cancel_of_a_held_answer_frees_it(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.ports, "exports_all_hidden_states", False)
    thinker.unread = {"cancelled"}
    held = asyncio.create_task(thinker.stage.serve(long_answer("cancelled")))
    await until(lambda: thinker.ports.room.num_waiting == 1, 60)
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


class ThinkerHarness:
    """A thinker stage that exports every hidden state, and the gateway's end of its channel."""

    def __init__(
        self, stage: Any, ports: Any, rows: Receiver[Edge], outputs: Receiver[ToGateway]
    ) -> None:
        self.stage = stage
        self.ports = ports
        self.rows = rows
        self.outputs = outputs
        self.got: dict[str, list[Chunk[ToGateway]]] = defaultdict(list)
        self.unread: set[str] = set()  # requests whose client reads nothing
        loop = asyncio.get_running_loop()
        loop.add_reader(ports.outputs.fileno(), ports.room.flush)
        loop.add_reader(outputs.fileno(), self._read)

    def _read(self) -> None:
        while (chunk := self.outputs.receive()) is not None:
            self.got[chunk.request_id].append(chunk)
            if chunk.request_id not in self.unread:
                self.outputs.grant(chunk.request_id)

    def token_ids(self, name: str) -> list[int]:
        """Of the text that has come."""
        told = (chunk.message for chunk in self.got[name])
        chunks = [message.chunk for message in told if isinstance(message, TextDelta)]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return [token for choice in choices for token in choice.get("token_ids") or ()]

    @property
    def num_unfinished(self) -> int:
        """Requests that the engine's front still has."""
        num: int = self.stage._engine.output_processor.get_num_unfinished_requests()
        return num

    def close(self) -> None:
        """Read no more."""
        loop = asyncio.get_running_loop()
        for end in (self.ports.outputs, self.outputs):
            loop.remove_reader(end.fileno())
        self.outputs.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def thinker(
    tiny_checkpoint: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[ThinkerHarness]:
    """The first stage of a graph whose edge wants every hidden state."""
    file = run_directory / "graph.yaml"
    file.write_text(GRAPH)
    graph = load_graph(file, str(tiny_checkpoint))
    limits = {"image": 2, "audio": 2, "video": 1}
    graph = graph.with_engine("qwen3_omni.thinker", **ENGINE, limit_mm_per_prompt=limits)
    channels = Channels(graph, run_directory, make_connector)
    channels.create()
    worker = StageWorker(graph, "thinker", run_directory)
    stage, ports = worker._stage, worker._ports
    await stage.start()
    connector = make_connector("shm", run_directory, {})
    rows = connector.receiver("thinker.talker.rows", EDGE)
    outputs = connector.receiver("thinker.gateway", TO_GATEWAY)
    harness = ThinkerHarness(stage, ports, rows, outputs)
    yield harness
    await stage.close()
    harness.close()
    rows.close()
    worker._close()
    channels.destroy()
