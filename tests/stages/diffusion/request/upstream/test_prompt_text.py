"""Prompts that a stage upstream writes: whole, in order, in time."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import pass_over

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stages.diffusion.request.upstream.prompt_text import PromptTexts
from omnistage.stages.messages.edge import EDGE, ReleasedWords
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import StagePorts

LIMIT_S = 600.0
ADDRESSES = ("thinker.dit.feed", "dit.gateway")


class Writer:
    """The stage upstream, and what reads it."""

    def __init__(self, directory: Path) -> None:
        connector = make_connector("shm", directory, {})
        for address in ADDRESSES:
            connector.create(address)
        self._feed = connector.sender(ADDRESSES[0])
        self._receiver = connector.receiver(ADDRESSES[0], EDGE)
        self._outputs = connector.sender(ADDRESSES[1])
        ports = StagePorts("dit", "a", {}, {}, self._outputs, source="thinker")
        ports.deadlines = Deadlines(first_chunk_s=LIMIT_S, next_chunk_s=LIMIT_S)
        self.texts = PromptTexts(ports)

    def write(self, request_id: str, *pieces: str, last: bool = True) -> None:
        for number, piece in enumerate(pieces):
            is_last = last and number == len(pieces) - 1
            self._feed.send(Chunk(request_id, ReleasedWords(piece), number, last=is_last))
            chunk = self._receiver.receive()
            assert chunk is not None
            self.texts.receive(self._receiver, chunk)

    @property
    def num_held(self) -> int:
        return self._receiver.num_requests

    def close(self) -> None:
        for end in (self._feed, self._receiver, self._outputs):
            end.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path)
    yield writer
    writer.close()


async def test_a_prompt_is_whole_once_its_last_piece_has_come(writer: Writer) -> None:
    first, second = (asyncio.create_task(writer.texts.whole(name)) for name in "ab")
    writer.write("a", "a ", "red ", last=False)  # before the task has begun
    await asyncio.sleep(0)
    writer.write("b", "")
    writer.write("a", "hat", "")
    assert await first == "a red hat"
    assert await second == ""
    assert writer.num_held == 0


async def test_what_does_not_come_in_time_names_the_edge(writer: Writer) -> None:
    waiting = asyncio.create_task(writer.texts.whole("a"))
    await asyncio.sleep(0)
    writer.write("a", "a ", last=False)
    pass_over(asyncio.get_running_loop(), LIMIT_S)
    with pytest.raises(RequestError, match="Edge thinker -> dit: ") as caught:
        await waiting
    assert caught.value.status == 504


async def test_a_writer_that_waits_for_its_client_is_not_overdue(writer: Writer) -> None:
    waiting = asyncio.create_task(writer.texts.whole("a"))
    for _ in range(5):
        pass_over(asyncio.get_running_loop(), LIMIT_S / 2)
        await asyncio.sleep(0.01)  # a timer that is due ends before
        writer.texts.wait_on("a")
    writer.write("a", "a hat")
    assert await waiting == "a hat"


async def test_pieces_of_a_cancelled_request_are_dropped(writer: Writer) -> None:
    waiting = asyncio.create_task(writer.texts.whole("a"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    writer.write("a", "late")
    await asyncio.sleep(0)
    assert writer.num_held == 0
