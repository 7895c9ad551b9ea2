"""A talker in an engine, and a thinker and a talker that overlap."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.api.prompts import QUESTIONS, Question, image_part, picture, plain
from support.oracles.reference import Reference
from support.stages.text_stage import ENGINE as TEXT_ENGINE
from support.stages.thinker_stage import ThinkerHarness
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.edge import EDGE, Edge, Open, Rows, StageTokens
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.vllm.models.rope import Grid
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.vllm.step.request_options import RequestOptions
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Opened

LONGEST = 4096  # the tiny checkpoint's
NEXT_CHUNK_S = 10.0
ENGINE: dict[str, Any] = {**TEXT_ENGINE, "kv_cache_memory_bytes": 64 << 20}
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


def first_half(heard: Heard) -> Sequence[Chunk[Edge]]:
    """Rows of the first images, and no token."""
    rows = [chunk for chunk in heard.chunks if "hidden" in chunk.tensors]
    return rows[: len(rows) // 2]


def held(talker: Harness) -> Mapping[str, int]:
    """What the engine holds for requests, as far as it is not zero."""
    return {what: count for what, count in talker.ledger.read().items() if count}


def greedy(question: Question, *outputs: str) -> Request:
    body = {"messages": question.messages, "temperature": 0, "max_completion_tokens": 8}
    path = PATH if "audio" in outputs else PATH[:1]
    return Request(Chat(body), list(outputs), path)


NUM_TOKENS = 400


def long_answer(name: str) -> Opened:
    """A request for many tokens, the same each time."""
    sampling = {"temperature": 0, "max_completion_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {"messages": QUESTIONS[0].messages, **sampling}
    return Opened(name, Request(Chat(body), ["text"]))


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
