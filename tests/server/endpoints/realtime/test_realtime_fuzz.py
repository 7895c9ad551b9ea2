"""Sequences of events in and out of order, malformed, huge and cut off: sessions stay sessions."""

import base64
import contextlib
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gateway.serving import RunningGateway
from support.hostile.fuzz import damaged, fuzzed, num_cases, odd
from support.realtime.client import PATH, Talk, silence, talking, tone
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from omnistage.server.endpoints.realtime import realtime

CLOSES = (1001, 1006, 1008, 1009)
# Ids are few, so that events meet the same items.
IDS = st.sampled_from(["a", "b", "c", "root", "", "x" * 200])
TEXTS = st.sampled_from(["Hello", "tool", "two tools", "silent", "refuse", "fail later", "cut"])
SOUNDS = st.sampled_from([tone(0.3), silence(0.3), silence(1.0), tone(0.01)])
MODALITIES = st.sampled_from([["text"], ["audio"], ["audio", "text"], [], ["video"], None])
FORMATS = st.sampled_from(["audio/pcm", "audio/pcmu", "audio/pcma", "pcm16", "g711_ulaw", "mp3"])


def encoded(samples: Any) -> str:
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


def event(kind: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("input_text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("output_text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("input_audio"), "audio": SOUNDS.map(encoded)}),
    st.fixed_dictionaries({"type": st.just("output_audio"), "transcript": TEXTS}),
)
ITEMS = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": st.lists(PARTS, max_size=3),
        },
        optional={"id": IDS},
    ),
    event("function_call", call_id=IDS, name=st.just("look"), arguments=st.just("{}")),
    event("function_call_output", call_id=IDS, output=TEXTS),
)
TOOLS = st.sampled_from([[], [{"type": "function", "name": "look"}], [{"type": "mcp"}], None])
DETECTIONS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["server_vad", "semantic_vad"])},
        optional={
            "create_response": st.booleans(),
            "interrupt_response": st.booleans(),
            "silence_duration_ms": st.sampled_from([0, 100, 500, -1]),
            "threshold": st.sampled_from([0, 0.5, 1, 2]),
        },
    ),
)
SESSIONS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["realtime", "transcription", "other"]),
        "instructions": TEXTS,
        "output_modalities": MODALITIES,
        "tools": TOOLS,
        "turn_detection": DETECTIONS,
        "input_audio_format": FORMATS,
        "audio": st.fixed_dictionaries(
            {"input": st.fixed_dictionaries({"turn_detection": DETECTIONS})}
        ),
    },
)
RESPONSES = st.fixed_dictionaries(
    {},
    optional={
        "conversation": st.sampled_from(["auto", "none", "x"]),
        "input": st.lists(ITEMS, max_size=2),
        "metadata": st.just({"a": "b"}),
        "output_modalities": MODALITIES,
        "tools": TOOLS,
        "max_output_tokens": st.sampled_from([1, "inf", 0]),
    },
)
EVENTS = st.one_of(
    event("session.update", session=SESSIONS),
    event("input_audio_buffer.append", audio=SOUNDS.map(encoded)),
    event("input_audio_buffer.commit"),
    event("input_audio_buffer.clear"),
    event("conversation.item.create", item=ITEMS, previous_item_id=st.one_of(st.none(), IDS)),
    event("conversation.item.retrieve", item_id=IDS),
    event("conversation.item.delete", item_id=IDS),
    event(
        "conversation.item.truncate",
        item_id=IDS,
        content_index=st.integers(-1, 2),
        audio_end_ms=st.integers(-1, 300),
    ),
    event("response.create", response=RESPONSES),
    event("response.create"),
    event("response.cancel"),
    event("output_audio_buffer.clear"),
    event("nonsense", value=odd),
)


@st.composite
def frames(draw: st.DrawFn) -> str | bytes:
    """An event, seldom damaged or with a field of another kind."""
    made = draw(EVENTS)
    if draw(st.integers(0, 9)) == 0:
        made[draw(st.sampled_from(sorted(made)))] = draw(odd)
    data = damaged(draw, json.dumps(made).encode(), one_in=10)
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode()
    return data


# Whether the client hangs up at the end, and how.
LEAVING = st.sampled_from(["close", "cut", "unread"])


@given(st.lists(frames(), max_size=25), LEAVING)
@fuzzed(num_cases(200, 5000))
def test_whatever_is_sent_a_session_stays_one(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture, given_frames: list[Any], leaving: str
) -> None:
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(realtime, "silero_file", lambda: None)
        url = gateway.url.replace("http", "ws", 1) + PATH
        with connect(url, open_timeout=600, close_timeout=2, compression=None) as ws:
            talk = Talk(ws)
            with contextlib.suppress(ConnectionClosed):
                for frame in given_frames:
                    ws.send(frame)
                if leaving == "cut":
                    ws.socket.close()
                elif leaving == "close":
                    ws.send(json.dumps({"type": "response.cancel", "event_id": "last"}))
                    read_until_last(talk)
            assert ws.close_code in (None, *CLOSES)
    gateway.wait_until_idle()
    records = [one for one in caplog.records if not one.name.startswith("websockets")]  # the client
    wrong = [one for one in records if one.levelno >= logging.ERROR]
    assert not wrong, [one.getMessage() for one in wrong]


def read_until_last(talk: Talk) -> None:
    """Until an answer to the last event has come and no response is under way."""
    is_last = False
    while not is_last or talk.order.responses:
        got = talk.event()
        error = got.get("error", {})
        is_last = is_last or error.get("event_id") == "last"
        is_last = is_last or bool(talk.order.over and got["type"] == "response.done")


def test_sessions_are_as_before_afterwards(gateway: RunningGateway) -> None:
    with talking(gateway) as talk:
        talk.write("Hello")
        assert talk.answer()["status"] == "completed"
    wait_until(lambda: gateway.do(lambda: gateway.runtime.flights.is_empty))
