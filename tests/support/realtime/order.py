"""The events of a session: whether each is whole, and in an order that OpenAI documents."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from support.api.openai_spec import COPIES, assert_valid

Event = dict[str, Any]
# Places where OpenAI's own events have null and its specification does not, and those where both
# have it. Clients break on others.
NULLS = {
    "session.audio.input.transcription",
    "session.audio.input.noise_reduction",
    "session.audio.input.turn_detection",
    "session.audio.input.turn_detection.idle_timeout_ms",
    "session.prompt",
    "session.tracing",
    "response.status_details",
    "response.usage",
    "response.metadata",
    "response.conversation_id",
    "item.content.transcript",
    "previous_item_id",
    "error.param",
    "error.event_id",
}
# What of a content part begins with a delta, and must then have its end.
PARTS = ("output_audio", "output_audio_transcript", "output_text")
WORDS = ("output_audio_transcript", "output_text")
CALL = "function_call_arguments"


@cache
def components() -> dict[str, str]:
    """The component of each type of event."""
    schemas = json.loads((COPIES / "realtime.json").read_text())["components"]["schemas"]
    found: dict[str, str] = {}
    for name, schema in schemas.items():
        if name.startswith("RealtimeServerEvent") and "properties" in schema:
            kind = schema["properties"]["type"]
            found |= dict.fromkeys(kind.get("enum", [kind.get("const")]), name)
    return found


def bare(value: Any) -> Any:
    """Without the keys that are null."""
    if isinstance(value, list):
        return [bare(one) for one in value]
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items() if one is not None}
    return value


def nulls(value: Any, place: str = "") -> Iterator[str]:
    """Where it has null."""
    if isinstance(value, list):
        for one in value:
            yield from nulls(one, place)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from nulls(one, f"{place}.{key}" if place else key)
    elif value is None:
        yield place


def check_event(event: Event) -> None:
    """Fail unless an event is what the specification says."""
    kind = event["type"]
    assert kind in components(), f"{kind} is not in the specification"
    more = {"previous_item_id": None} if event.get("previous_item_id", "") is None else {}
    assert_valid({**bare(event), **more}, components()[kind], "realtime")
    assert set(nulls(event)) <= NULLS, event


def words_of(item: Event) -> str:
    """Return the words of a message of the model."""
    parts = item.get("content", ())
    return "".join(part.get("transcript") or part.get("text") or "" for part in parts)


class Order:
    """Checks that events come in the order of one session."""

    def __init__(self) -> None:
        self.num_events = 0
        self.ids: set[str] = set()
        self.items: list[str] = []
        self.open_items: dict[str, Event] = {}  # added, and not done yet
        self.responses: dict[str, dict[str, Any]] = {}  # that are under way
        self.over: set[str] = set()
        self.sent: dict[str, str] = {}  # the words of each answer's deltas
        self.speaking: str | None = None
        self.stopped: str | None = None  # the turn that is to be committed
        self.at_ms = 0
        self.committed: str | None = None

    def add(self, event: Event) -> None:
        """Check the next one."""
        kind = event["type"]
        assert event["event_id"] not in self.ids
        self.ids.add(event["event_id"])
        assert (kind == "session.created") == (self.num_events == 0)
        self.num_events += 1
        if self.committed is not None:
            assert kind == "conversation.item.added", kind
            assert event["item"]["id"] == self.committed
            self.committed = None
        if kind.startswith("conversation.item."):
            self._add_item_event(kind, event)
        elif kind.startswith("response."):
            self._add_response_event(kind, event)
        elif kind.startswith("input_audio_buffer."):
            self._add_audio_event(kind, event)

    def end(self) -> None:
        """Check that nothing is left open; at the end of a session that was not cut off."""
        assert not self.responses
        assert not self.open_items

    def _add_item_event(self, kind: str, event: Event) -> None:
        if kind == "conversation.item.added":
            item_id, previous = event["item"]["id"], event["previous_item_id"]
            assert item_id not in self.items
            place = 0 if previous is None else 1 + self.items.index(previous)
            self.items.insert(place, item_id)
            self.open_items[item_id] = event
        elif kind == "conversation.item.done":
            item_id, previous = event["item"]["id"], event["previous_item_id"]
            self.open_items.pop(item_id)
            place = self.items.index(item_id)
            assert previous == (self.items[place - 1] if place else None)
            if event["item"].get("role") == "assistant" and item_id in self.sent:
                # A client may have truncated it while it was made.
                assert self.sent[item_id].startswith(words_of(event["item"]))
        elif kind == "conversation.item.deleted":
            self.items.remove(event["item_id"])
            self.open_items.pop(event["item_id"], None)
        elif kind == "conversation.item.retrieved":
            assert event["item"]["id"] in self.items
        elif kind == "conversation.item.truncated":
            assert event["item_id"] in self.items

    def _add_audio_event(self, kind: str, event: Event) -> None:
        if kind == "input_audio_buffer.speech_started":
            assert self.speaking is None
            self.speaking = event["item_id"]
            assert event["audio_start_ms"] >= self.at_ms - 1
            self.at_ms = event["audio_start_ms"]
        elif kind == "input_audio_buffer.speech_stopped":
            assert self.speaking == event["item_id"]
            assert event["audio_end_ms"] > self.at_ms
            self.at_ms = event["audio_end_ms"]
            self.speaking, self.stopped = None, event["item_id"]
        elif kind == "input_audio_buffer.committed":
            assert (self.speaking or self.stopped) in (None, event["item_id"])
            self.speaking, self.stopped, self.committed = None, None, event["item_id"]
        elif kind == "input_audio_buffer.cleared":
            self.speaking = self.stopped = None
        elif kind == "input_audio_buffer.timeout_triggered":
            self.stopped = event["item_id"]

    def _add_response_event(self, kind: str, event: Event) -> None:
        if kind == "response.created":
            response = event["response"]
            assert response["status"] == "in_progress"
            assert response["id"] not in self.over | self.responses.keys()
            others = [one for one in self.responses.values() if one["conversation"] is not None]
            assert response["conversation_id"] is None or not others
            conversation = response["conversation_id"]
            begun: dict[str, Any] = {"items": {}, "conversation": conversation}
            self.responses[response["id"]] = begun
            return
        if kind == "response.done":
            response = event["response"]
            begun = self.responses.pop(response["id"])
            self.over.add(response["id"])
            assert response["status"] != "in_progress"
            assert response["usage"] is not None
            details = response["status_details"]
            assert (details is None) == (response["status"] == "completed")
            assert details is None or details["type"] == response["status"]
            told = [item["id"] for item in response["output"]]
            assert told == list(begun["items"])
            for item in response["output"]:
                assert words_of(item) == self.sent.get(item["id"], "")
            assert all(one["is_done"] for one in begun["items"].values())
            return
        items = self.responses[event["response_id"]]["items"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items[event["item"]["id"]] = {"is_done": False, "part": None, "open": {}, "index": 0}
            items[event["item"]["id"]]["index"] = event["output_index"]
            return
        item = items[event["item"]["id"] if "item" in event else event["item_id"]]
        assert not item["is_done"]
        assert item["index"] == event["output_index"]
        if kind == "response.output_item.done":
            item["is_done"] = True
            assert event["item"]["status"] != "in_progress"
            assert item["part"] in (None, "done")
            assert not any(item["open"].values())
            assert words_of(event["item"]) == self.sent.get(event["item"]["id"], "")
        elif kind == "response.content_part.added":
            assert item["part"] is None
            item["part"] = "open"
        elif kind == "response.content_part.done":
            assert item["part"] == "open"
            assert not any(item["open"].values())
            assert words_of({"content": [event["part"]]}) == self.sent.get(event["item_id"], "")
            item["part"] = "done"
        else:
            self._add_delta(kind, event, item)

    def _add_delta(self, kind: str, event: Event, item: dict[str, Any]) -> None:
        name, _, step = kind.removeprefix("response.").rpartition(".")
        assert name in (*PARTS, CALL)
        assert name == CALL or item["part"] == "open"
        if step == "delta":
            item["open"].setdefault(name, True)
            assert item["open"][name], f"{kind} behind its end"
            item.setdefault(name, []).append(event["delta"])
            if name in WORDS:
                self.sent[event["item_id"]] = "".join(item[name])
            return
        assert step == "done"
        item["open"][name] = False
        whole = event.get("transcript", event.get("text", event.get("arguments")))
        assert whole is None or whole == "".join(item.get(name, []))
