"""What of an answer goes to the stages that make something of its words."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.declared.graph import Deadlines
from omnistage.stage_configs.kinds import Payload, Payloads, payloads
from omnistage.stages.messages.body import Chat, Draw
from omnistage.stages.messages.edge import EDGE, Edge, NothingToSay, Open, ReleasedWords, Waits
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers import released_text
from omnistage.stages.vllm.answers.released_text import ReleasedText
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream, StagePorts

TOOL = {"type": "function", "function": {"name": "generate_image"}}
WORDS = payloads(Payload.TEXT)


class Edges:
    """A stage with an edge to each of these targets, and their other ends."""

    def __init__(self, directory: Path, carried: dict[str, Payloads]) -> None:
        connector = make_connector("shm", directory, {"credit": 0})
        self._outputs = self._end(connector, "one.gateway").sender("one.gateway")
        self.ports = StagePorts("one", "a", {}, {}, self._outputs)
        self.opens: dict[str, Receiver[Edge]] = {}
        self.feeds: dict[str, Receiver[Edge]] = {}
        for target, carries in carried.items():
            opens, feed = f"one.{target}.open", f"one.{target}.feed"
            edge = Downstream(
                target,
                carries,
                self._end(connector, opens).sender(opens),
                self._end(connector, feed).sender(feed),
                Port("", "shm", "", {}),
                [1],
            )
            self.ports.downstream.append(edge)
            self.opens[target] = connector.receiver(opens, EDGE)
            self.feeds[target] = connector.receiver(feed, EDGE)

    def _end(self, connector: Any, address: str) -> Any:
        connector.create(address)
        return connector

    def said(self, target: str) -> list[Edge]:
        return [chunk.message for chunk in received(self.opens[target])]

    def text(self, target: str) -> list[tuple[str, bool]]:
        chunks = received(self.feeds[target])
        return [(c.message.text, c.last) for c in chunks if isinstance(c.message, ReleasedWords)]

    def close(self) -> None:
        senders = [end for edge in self.ports.downstream for end in (edge.open, edge.feed)]
        for end in (self._outputs, *senders, *self.opens.values(), *self.feeds.values()):
            end.close()


def received(receiver: Receiver[Edge]) -> Iterator[Any]:
    while (chunk := receiver.receive()) is not None:
        yield chunk


@pytest.fixture
def edges(tmp_path: Path) -> Iterator[Edges]:
    edges = Edges(
        tmp_path, {"dit": WORDS, "other": WORDS, "talker": payloads(Payload.TOKENS, Payload.ROWS)}
    )
    yield edges
    edges.close()


DRAWN = Draw({"size": "1x1"})


def request(*path: str, **body: Any) -> Request:
    fields = {"messages": ["…"], **body}
    return Request(Chat(fields), ["text", "image"], ["one", *path], DRAWN)


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def call(arguments: str, name: str | None = None, index: int = 0) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return delta(tool_calls=[{"index": index, "function": function}])


def answered(edges: Edges, asked: Request, *chunks: dict[str, Any]) -> None:
    released = ReleasedText("a", asked, edges.ports)
    released.open()
    for chunk in chunks:
        released.add(chunk)
    released.finish()


def test_words_go_along_live_edges_that_carry_text_and_no_others(edges: Edges) -> None:
    answered(edges, request("dit", "talker"), delta(content="a "), delta(content="hat"))
    assert edges.text("dit") == [("a ", False), ("hat", False), ("", True)]
    [opened] = edges.said("dit")
    assert isinstance(opened, Open)
    assert (opened.request.body, opened.request.path[1:]) == (DRAWN, ["dit", "talker"])
    for target in ("other", "talker"):
        assert edges.said(target) == []
        assert edges.text(target) == []


def test_each_live_edge_gets_all_of_it(edges: Edges) -> None:
    answered(edges, request("dit", "other"), delta(content="a hat"))
    for target in ("dit", "other"):
        assert edges.text(target) == [("a hat", False), ("", True)]


def test_an_answer_without_words_says_so(edges: Edges) -> None:
    answered(edges, request("dit"), delta(reasoning="hm"), delta(content=""))
    assert edges.said("dit")[1:] == [NothingToSay()]
    assert edges.text("dit") == [("", True)]


def test_while_it_thinks_the_edge_is_told_now_and_then(
    edges: Edges, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(released_text, "time", clock)
    edges.ports.deadlines = Deadlines(next_chunk_s=100)
    released = ReleasedText("a", request("dit"), edges.ports)
    released.open()
    for _ in range(4):
        now += 40
        released.add(delta(reasoning="hm"))
    assert edges.said("dit")[1:] == [Waits(), Waits()]


def test_while_the_client_does_not_read_the_edge_is_told(edges: Edges) -> None:
    released = ReleasedText("a", request("dit"), edges.ports)
    released.show_life()
    assert edges.said("dit") == [Waits()]


@pytest.mark.parametrize(
    "pieces",
    [
        [call('{"prompt": "a hat"}', "generate_image")],
        [call("", "generate_image"), call('{"prompt": '), call('"a hat"}')],
        [
            call("{}", "look"),
            call('{"prompt": "a hat"}', "generate_image", 1),
            call('{"prompt": "no"}', "generate_image", 2),
        ],
    ],
    ids=["at once", "in pieces", "beside other calls"],
)
def test_where_the_tool_is_allowed_its_first_call_says_what_is_drawn(
    pieces: list[dict[str, Any]], edges: Edges
) -> None:
    answered(edges, request("dit", tools=[TOOL]), delta(content="I draw."), *pieces)
    assert edges.text("dit") == [("a hat", False), ("", True)]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [call("{}", "look")],
        [call("{}", "generate_image")],
        [call('{"prompt": 1}', "generate_image")],
        [call("[]", "generate_image")],
        [call('{"prompt": "a h', "generate_image")],
    ],
)
def test_without_a_call_that_can_be_read_nothing_is_drawn(
    pieces: list[dict[str, Any]], edges: Edges
) -> None:
    answered(edges, request("dit", tools=[TOOL]), delta(content="Words."), *pieces)
    assert edges.said("dit")[1:] == [NothingToSay()]
    assert edges.text("dit") == [("", True)]


def test_a_tool_that_may_not_be_called_leaves_the_words(edges: Edges) -> None:
    answered(edges, request("dit", tools=[TOOL], tool_choice="none"), delta(content="a hat"))
    assert edges.text("dit") == [("a hat", False), ("", True)]
