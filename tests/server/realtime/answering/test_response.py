"""A response as it is told: what has not left is taken back, and every end closes what began."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.realtime.order import Order, check_event, words_of

from omnistage.server.common.errors import ApiError
from omnistage.server.http.protocol.outbox import Outbox
from omnistage.server.realtime.answering.response import Response
from omnistage.server.realtime.conversation import Conversation
from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.settings import ResponseSettings

Json = dict[str, Any]


class Told:
    """A response of a conversation, with the frames that have left."""

    def __init__(self, modality: Any = "audio", is_out_of_band: bool = False) -> None:
        self.outbox = Outbox(1 << 20)
        self.left: list[Json] = []
        self.conversation = Conversation()
        settings = ResponseSettings(output_modalities=[modality])
        conversation = None if is_out_of_band else self.conversation
        self.response = Response(settings, conversation, "conv_1", self.tell)
        self.response.begin()

    def tell(self, event: Json, source: object = None) -> None:
        self.outbox.tell({"event_id": new_id("event"), **event}, source)

    def leave(self, num: int | None = None) -> None:
        """Have frames leave, all or the first of them."""
        frames = self.outbox._frames
        for _ in range(len(frames) if num is None else min(num, len(frames))):
            frame, _ = frames.popleft()
            self.left.append(json.loads(frame))
        if not frames:
            self.response.note_sent()

    def check(self) -> None:
        order = Order()
        order.num_events = 1
        for event in self.left:
            check_event(event)
            order.add(event)
        order.end()

    @property
    def sent_words(self) -> str:
        deltas = [
            one for one in self.left if one["type"].endswith(("transcript.delta", "text.delta"))
        ]
        return "".join(one["delta"] for one in deltas)


def chunk(words: str = "", finish: str | None = None, calls: Any = None) -> Json:
    delta: Json = {"content": words} | ({} if calls is None else {"tool_calls": calls})
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(number: int, name: str = "", arguments: str = "") -> Json:
    function = {"name": name, "arguments": arguments}
    return chunk(calls=[{"index": number, "id": "chatcmpl-tool", "function": function}])


@pytest.mark.parametrize("num_left", range(12))
async def test_an_interrupted_answer_has_the_words_that_left(num_left: int) -> None:
    told = Told()
    for word in ("One ", "two ", "three "):
        told.response.add_chunk(chunk(word))
        told.response.add_audio(bytes(4800))
    told.leave(num_left)
    told.response.withdraw(told.outbox)
    told.response.cancel("turn_detected")
    told.leave()
    told.check()
    item = told.left[-1]["response"]["output"][0]
    assert item["content"][0]["transcript"] == told.sent_words
    num_audio = sum(one["type"] == "response.output_audio.delta" for one in told.left)
    assert told.conversation.get(item["id"]).spoken.ms == 100 * num_audio  # type: ignore[union-attr]
    assert num_audio == max(0, (num_left - 4) // 2)


@pytest.mark.parametrize("end", ["complete", "cancel", "fail"])
@pytest.mark.parametrize("num_before", [1, 2, 3])
async def test_an_answer_truncated_in_the_making_ends_as_it_was_sent(
    num_before: int, end: str
) -> None:
    """Its response reports the deltas; the conversation has what was heard."""
    told = Told()
    for number, word in enumerate(("One ", "two ", "three ")):
        told.response.add_chunk(chunk(word))
        told.response.add_audio(bytes(4800))
        if number + 1 == num_before:
            (item,) = told.conversation
            told.conversation.truncate(item.id, 0, 50)
            assert item.to_json()["status"] == "in_progress"
    told.leave()
    if end == "complete":
        told.response.complete()
    elif end == "cancel":
        told.response.cancel("client_cancelled")
    else:
        told.response.fail(ApiError(500, "broken", code="stage_unavailable"))
    told.leave()
    told.check()  # every `done` of the response has the words of the deltas
    assert told.sent_words == "One two three "
    by_kind = {one["type"]: one for one in told.left}
    assert by_kind["response.output_audio_transcript.done"]["transcript"] == told.sent_words
    status = "completed" if end == "complete" else "incomplete"
    assert by_kind["response.output_item.done"]["item"]["status"] == status
    assert by_kind["response.done"]["response"]["output"][0]["status"] == status
    done = by_kind["conversation.item.done"]["item"]
    assert done == item.to_json()
    assert (done["status"], words_of(done)) == ("incomplete", "")  # 50 of 300 ms
    assert item.to_chat(hears=True) is None


async def test_an_answer_truncated_at_its_end_so_far_loses_what_is_sent_afterwards() -> None:
    told = Told()
    for word in ("One ", "two "):
        told.response.add_chunk(chunk(word))
        told.response.add_audio(bytes(9600))
        (item,) = told.conversation
        told.conversation.truncate(item.id, 0, 250)  # of 200 ms so far, then of 400
    told.response.complete()
    told.leave()
    told.check()
    assert words_of(item.to_json()) == "One"
    assert words_of(item.to_json(is_sent=True)) == "One two "


async def test_a_text_in_the_making_cannot_be_truncated() -> None:
    told = Told("text")
    told.response.add_chunk(chunk("One "))
    (item,) = told.conversation
    with pytest.raises(ApiError, match="names no audio of the model's"):
        told.conversation.truncate(item.id, 0, 50)


async def test_a_frame_that_is_on_its_way_is_not_taken_back() -> None:
    told = Told("text")
    told.leave()
    told.response.add_chunk(chunk("One "))
    told.leave(3)
    told.response.add_chunk(chunk("two"))
    told.outbox._is_sending = True
    told.response.withdraw(told.outbox)
    ((frame, _),) = told.outbox._frames
    assert json.loads(frame)["delta"] == "One "
    told.response.cancel("turn_detected")
    told.leave()
    assert told.sent_words == "One "
    told.check()


steps = st.lists(
    st.one_of(
        st.builds(lambda words: ("chunk", chunk(words)), st.sampled_from(["", "a", "b c "])),
        st.builds(
            lambda n, name, arg: ("chunk", call(n, name, arg)),
            st.integers(0, 2),
            st.sampled_from(["", "look"]),
            st.sampled_from(["", "{}"]),
        ),
        st.just(("audio", bytes(480))),
        st.just(("end_audio", 3)),
        st.builds(lambda n: ("leave", n), st.integers(0, 5)),
        st.builds(lambda ms: ("truncate", ms), st.integers(0, 30)),
    ),
    max_size=20,
)
ends = st.sampled_from(["complete", "length", "cancel", "withdraw", "fail"])


@given(steps, ends, st.sampled_from(["audio", "text"]), st.booleans())
async def test_whatever_a_chat_makes_is_told_in_order(
    given_steps: list[Any], end: str, modality: str, is_out_of_band: bool
) -> None:
    told = Told(modality, is_out_of_band)
    response = told.response
    for kind, value in given_steps:
        if kind == "chunk":
            response.add_chunk(value)
        elif kind == "audio" and modality == "audio" and not response._audio_has_ended:
            response.add_audio(value)
        elif kind == "end_audio" and modality == "audio":
            response.end_audio(value)
        elif kind == "leave":
            told.leave(value)
        elif kind == "truncate" and (item := response._message) in told.conversation._items:
            assert item is not None
            with contextlib.suppress(ApiError):  # as of a text
                told.conversation.truncate(item.id, 0, value)
    if end == "withdraw":
        response.withdraw(told.outbox)
    if end in ("complete", "length"):
        response.add_chunk(chunk(finish="stop" if end == "complete" else end))
        response.complete()
    elif end == "fail":
        response.fail(ApiError(500, "broken", code="stage_unavailable"))
    else:
        response.cancel("client_cancelled")
    told.leave()
    told.check()
    done = told.left[-1]["response"]
    words = [
        part.get("transcript", part.get("text"))
        for item in done["output"]
        for part in item.get("content", ())
    ]
    assert "".join(words) == told.sent_words
