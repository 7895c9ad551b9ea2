"""The thinker stage before its engine starts."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api.bodies import spoken_of
from support.waiting import until
from transformers import AutoTokenizer
from vllm.triton_utils import HAS_TRITON

from omnistage.connectors import make_connector
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.kinds import Payload, payloads
from omnistage.stages.messages.edge import EDGE, NothingToSay, Open, Waits
from omnistage.stages.messages.to_gateway import TO_GATEWAY, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.thinker import Thinker
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts


def test_without_a_talker_it_reads_no_tokenizer_beside_its_engine_s(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *names, **_: read.append(names))
    outputs: Any = None  # it sends nothing yet
    Thinker(StagePorts("thinker", str(tiny_checkpoint), {}, {}, outputs))
    assert not read


class Talking:
    """A thinker that has loaded no engine, beside the ends that its talker has."""

    def __init__(self, checkpoint: Path, directory: Path) -> None:
        connector = make_connector("inprocess", directory, {"credit": 0})
        addresses = ("thinker.talker.open", "thinker.talker.feed", "thinker.gateway")
        for address in addresses:
            connector.create(address)
        opens, feed, outputs = (connector.sender(address) for address in addresses)
        self.opens = connector.receiver(addresses[0], EDGE)
        self.feed = connector.receiver(addresses[1], EDGE)
        self.outputs = connector.receiver(addresses[2], TO_GATEWAY)
        self._connector, self._addresses = connector, addresses
        ends: list[Any] = [opens, feed, outputs, self.opens, self.feed, self.outputs]
        self._ends = ends
        rows: Any = None
        carries = payloads(Payload.TOKENS, Payload.ROWS)
        edge = Downstream("talker", carries, opens, feed, rows, [4, 8])
        ports = StagePorts("thinker", str(checkpoint), {}, {}, outputs, [edge])
        ports.deadlines = Deadlines(next_chunk_s=600)
        self.ports, self.stage = ports, Thinker(ports)

    def serve(self, text: str, **more: Any) -> asyncio.Task[None]:
        body = {"input": text, "instructions": "Whisper.", **more}
        request = Request(spoken_of(body), ["text", "audio"], ["thinker", "talker"])
        return asyncio.create_task(self.stage.serve(Opened("a", request)))

    def fed(self) -> list[int]:
        """Tokens that have come since the last time; the last chunk says that it is."""
        got = list(iter(self.feed.receive, None))
        self.ended = any(chunk.last for chunk in got)
        tensors = [chunk.tensors["tokens"] for chunk in got if chunk.tensors]
        return [token for one in tensors for token in one.numpy().tolist()]

    async def heard(self, count: int) -> list[Any]:
        """The next messages that announce or keep the request, once so many have come."""
        got: list[Any] = []
        while len(got) < count:
            got += [chunk.message for chunk in iter(self.opens.receive, None)]
            await asyncio.sleep(0.001)
        return [type(message) for message in got]

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for address in self._addresses:
            self._connector.destroy(address)


def grown(into: list[Any], more: Iterable[Any]) -> list[Any]:
    """Returns what has come so far."""
    into.extend(more)
    return into


@pytest.fixture
def talking(tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Talking]:
    running = Talking(tiny_checkpoint, tmp_path)
    yield running
    running.close()


async def test_a_text_in_pieces_is_fed_to_the_talker_word_by_word_as_it_comes(
    talking: Talking,
) -> None:
    serving = talking.serve("Hello th", open=True)
    opened: list[Any] = []
    fed: list[int] = []
    await until(lambda: grown(opened, iter(talking.opens.receive, None)))
    prompt = opened[0].tensors["prompt"].numpy().tolist()
    await until(lambda: grown(fed, talking.fed()) == list(b"Hello"))
    talking.stage.more_text("a", "ere, you", False)
    await until(lambda: grown(fed, talking.fed()) == list(b"Hello there,"))
    assert not talking.ended
    talking.stage.more_text("a", "!", True)
    await serving
    assert talking.fed() == list(b" you!")
    assert talking.ended
    (told,) = iter(talking.outputs.receive, None)
    assert isinstance(told.message, TextDelta)
    num_tokens = told.message.chunk["usage"]["prompt_tokens"]
    list(iter(talking.opens.receive, None))
    await talking.serve("Hello there, you!")
    whole = talking.opens.receive()
    assert whole is not None
    spoken = b"Hello there, you!"
    assert whole.tensors["prompt"].numpy().tolist() == [*prompt, *spoken]
    assert num_tokens == len(prompt) + len(spoken)


async def test_the_talker_hears_that_more_text_will_come(talking: Talking) -> None:
    talking.ports.deadlines = Deadlines(next_chunk_s=0.1)
    serving = talking.serve("Hm", open=True)
    assert (await talking.heard(3))[:3] == [Open, Waits, Waits]
    chunks: list[Any] = []
    await until(lambda: grown(chunks, iter(talking.feed.receive, None)))
    assert not any(chunk.tensors or chunk.last for chunk in chunks)
    talking.stage.more_text("a", "", True)
    await serving
    assert talking.fed() == list(b"Hm")


async def test_the_talker_hears_of_each_piece_that_frames_will_come_as_slowly_as_the_text(
    talking: Talking,
) -> None:
    """Pieces that are in time give a frame each, and a decoder gets many at once: it is told."""
    serving = talking.serve("H", open=True)
    assert await talking.heard(2) == [Open, Waits]
    list(iter(talking.feed.receive, None))
    for piece in ("m", "m", " so"):
        talking.stage.more_text("a", piece, False)
        assert await talking.heard(1) == [Waits]
        await until(lambda: talking.feed.receive() is not None)  # the talker's engine waits, too
    talking.stage.more_text("a", "", True)
    await serving


async def test_an_open_text_without_a_token_is_told_as_silent(talking: Talking) -> None:
    serving = talking.serve("", open=True)
    begun = await talking.heard(2)
    talking.stage.more_text("a", "", True)
    await serving
    said = [type(chunk.message) for chunk in iter(talking.opens.receive, None)]
    assert [*begun, *said] == [Open, Waits, Waits, NothingToSay]


async def test_a_cancel_while_text_comes_leaves_nothing(talking: Talking) -> None:
    serving = talking.serve("Hm", open=True)
    await asyncio.sleep(0.01)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert not talking.stage._texts._texts
    talking.stage.more_text("a", "more", False)


@pytest.mark.parametrize("targets", [None, ["q_proj", "v_proj"]], ids=["all", "attention"])
async def test_adapters_are_refused_before_it_loads_where_vllm_has_no_triton_for_its_experts(
    targets: Any, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `lora_target_modules` leaves the experts out: vLLM computes them by Triton too."""
    if HAS_TRITON:
        pytest.skip("it is there")
    outputs: Any = None  # it sends nothing
    engine = {"enable_lora": True, "lora_target_modules": targets, "max_model_len": 512}
    stage = Thinker(StagePorts("thinker", str(tiny_checkpoint), engine, {}, outputs))
    monkeypatch.setattr(AsyncLLM, "from_vllm_config", lambda *_, **__: pytest.fail("it loads"))
    with pytest.raises(ValueError, match=r"^enable_lora: .* computes experts by Triton"):
        await stage.start()
