"""What the talker hears of an answer: how many of the thinker's rows count."""

from typing import Any

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.kinds import Payload, payloads
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.edge import NothingToSay, Open, RowsReleased, Waits
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.speech import SpokenRows
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.vllm.models.rope import Grid
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream

PROMPT = [5, 6, 7]


class Sent:
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        self.chunks: list[Chunk[Any]] = []
        self.forgotten: list[str] = []

    def send(self, chunk: Chunk[Any]) -> None:
        self.chunks.append(chunk)

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


class Talker:
    """The other end of an edge, and an answer on its way to it."""

    def __init__(self, **body: Any) -> None:
        opens, feed = Sent(), Sent()
        ends: tuple[Any, Any] = opens, feed
        carried = payloads(Payload.TOKENS, Payload.ROWS)
        edge = Downstream("talker", carried, *ends, Port("", "shm", "", {}), [1])
        self.spoken = SpokenRows("r", Request(Chat(body), ["audio"]), edge, len)
        self._opens, self._feed = opens, feed

    @property
    def told(self) -> list[Any]:
        return [chunk.message for chunk in self._opens.chunks]

    @property
    def released(self) -> list[tuple[int, bool]]:
        chunks = self._feed.chunks
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert all(isinstance(chunk.message, RowsReleased) for chunk in chunks)
        return [(chunk.message.num_rows, chunk.last) for chunk in chunks]

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self._opens.chunks[0].tensors["prompt"].numpy().tolist()
        return ids


def delta(ids: list[int], text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"delta": {"content": text, **more}, "token_ids": ids, "finish_reason": finish}
    return {"choices": [choice]}


def test_the_talker_hears_of_the_prompt_and_then_of_each_token_that_is_released() -> None:
    talker = Talker(messages=["long"])
    grid = Grid(1, (1, 1, 1), 25.0)
    talker.spoken.open(PROMPT, [grid])
    (opened,) = talker.told
    assert isinstance(opened, Open)
    assert opened.read(ThinkerPrompt).grids == [grid]
    assert opened.request.body is None
    assert talker.prompt == PROMPT
    for chunk in (delta([1], "a"), delta([2, 3], "bc"), delta([4, 9], "d", "stop")):
        talker.spoken.add(chunk)
    talker.spoken.finish()
    assert talker.released == [(4, False), (6, False), (7, False), (7, True)]
    assert talker.told == [opened]


def test_nothing_is_spoken_behind_a_tool_call() -> None:
    talker = Talker()
    talker.spoken.open(PROMPT, [])
    talker.spoken.add(delta([1], "a"))
    talker.spoken.add(delta([2], tool_calls=[{"index": 0}]))
    talker.spoken.add(delta([3, 4], "bc"))
    talker.spoken.finish()
    assert talker.released == [(4, False), (4, True)]


def test_the_talker_has_nothing_to_speak_of_an_answer_without_a_spoken_token() -> None:
    """An engine that had all rows of it would speak before it is ended."""
    talker = Talker()
    talker.spoken.open(PROMPT, [])
    talker.spoken.add(delta([9], "", "stop"))
    talker.spoken.finish()
    assert isinstance(talker.told[-1], NothingToSay)
    assert talker.released == []
    assert talker._feed.forgotten == ["r"]


def test_a_given_text_is_released_at_once() -> None:
    talker = Talker()
    talker.spoken.open_given(PROMPT, 4)
    assert talker.released == [(7, True)]
    assert len(talker.told) == 1


def test_while_the_client_reads_nothing_the_talker_hears_that_more_will_come() -> None:
    talker = Talker()
    talker.spoken.show_life()
    assert not talker.told
    assert not talker.released
    talker.spoken.open(PROMPT, [])
    talker.spoken.add(delta([1], "a"))
    talker.spoken.show_life()
    assert isinstance(talker.told[-1], Waits)
    assert talker.released == [(4, False), (4, False)]


def test_an_answer_that_was_never_announced_ends_in_silence() -> None:
    talker = Talker()
    talker.spoken.finish()
    assert not talker.told
    assert not talker.released
