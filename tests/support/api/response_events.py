"""The events of a streamed response, each checked against OpenAI's specification."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
from support.api.openai_spec import assert_valid

# What responses of every kind have: a type, and its schema's name.
COMMON = {
    "response.created": "ResponseCreatedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.failed": "ResponseFailedEvent",
}


def checked_events(answer: httpx.Response, components: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the events in order, numbered from 0; none has another type than these."""
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert_valid(event, components[event["type"]], "responses")
    return events
