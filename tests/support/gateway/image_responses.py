"""Responses with the tool of images, and their events."""

import base64
from typing import Any

import httpx
from support.api.openai_spec import assert_valid
from support.api.response_events import COMMON, checked_events
from support.gateway.serving import MODEL
from support.media.pictures import png

URL = "/v1/responses"
TOOL: dict[str, Any] = {"type": "image_generation", "size": "64x32"}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
DATA_URL = "data:image/png;base64," + base64.b64encode(png(48, 32)).decode()
CALL = "image_generation_call"
DRAWN = ["output_item.added", f"{CALL}.in_progress", f"{CALL}.generating"]
END = [f"{CALL}.completed", "output_item.done"]
COMPONENTS = {
    **COMMON,
    f"response.{CALL}.in_progress": "ResponseImageGenCallInProgressEvent",
    f"response.{CALL}.generating": "ResponseImageGenCallGeneratingEvent",
    f"response.{CALL}.partial_image": "ResponseImageGenCallPartialImageEvent",
    f"response.{CALL}.completed": "ResponseImageGenCallCompletedEvent",
}


def whole(client: httpx.Client, said: Any = "a cat", **more: Any) -> dict[str, Any]:
    answer = client.post(URL, json={"model": MODEL, "input": said, **more})
    assert answer.status_code == 200, answer.text
    assert_valid(answer.json(), "Response", "responses")
    response: dict[str, Any] = answer.json()
    return response


def events_of(client: httpx.Client, said: Any = "a cat", **more: Any) -> list[dict[str, Any]]:
    """The events of one streamed response, each checked."""
    answer = client.post(URL, json={"model": MODEL, "input": said, "stream": True, **more})
    return checked_events(answer, COMPONENTS)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "a hat"}, *content]}]
