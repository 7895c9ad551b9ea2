"""Responses of a model that draws what it writes, and of one that draws nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.doors import ONE_SHOT
from support.gateway.image_responses import (
    CALL,
    DATA_URL,
    DRAWN,
    END,
    FUNCTION,
    TOOL,
    URL,
    events_of,
    kinds,
    user,
    whole,
)
from support.gateway.serving import MIXED, TEXT_ONLY, RunningGateway, running_gateway
from support.media.pictures import pixels_of


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("mixed"), MIXED) as running:
        yield running


@pytest.fixture(scope="module")
def mixed_client(mixed: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mixed.url, timeout=600, limits=ONE_SHOT) as client:
        yield client


def test_a_model_that_draws_what_it_writes_draws_where_the_tool_is_given(
    mixed: RunningGateway, mixed_client: httpx.Client
) -> None:
    answer = whole(mixed_client, "Hi", tools=[{**TOOL, "num_inference_steps": 3}], seed=4)
    message, call = answer["output"]
    assert message["content"][0]["text"] == "Hello there"
    assert pixels_of(call["result"]).shape == (32, 64, 3)
    assert answer["usage"]["output_tokens"] == 3 + 8
    request = mixed.stages.stages["thinker"].last_request
    assert request.path == ["thinker", "dit"]
    assert request.image is not None
    assert (request.image.fields["width"], request.image.fields["num_inference_steps"]) == (64, 3)
    assert "tools" not in request.fields


def test_fields_that_a_drawn_answer_cannot_have_are_named(mixed_client: httpx.Client) -> None:
    tool = {**TOOL, "partial_images": 1, "strength": 0.5}
    answer = mixed_client.post(URL, json={"input": "Hi", "tools": [tool]})
    assert answer.status_code == 200
    assert answer.headers["x-omnistage-warning"].endswith(
        ": tools[0].partial_images, tools[0].strength"
    )


def test_the_words_of_a_drawn_answer_end_before_its_image(mixed_client: httpx.Client) -> None:
    events = events_of(mixed_client, "Hi", tools=[TOOL, FUNCTION])
    text, drawing = kinds(events), [*DRAWN, *END, "completed"]
    assert text[-len(drawing) :] == drawing
    assert text[-len(drawing) - 1] == "output_item.done"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message", CALL]
    assert [event["output_index"] for event in events if f".{CALL}." in event["type"]] == [1] * 3


@pytest.mark.parametrize(
    ("choice", "is_drawn", "functions"),
    [
        ("auto", True, "auto"),
        ({"type": "image_generation"}, True, None),
        ("none", False, None),
        ({"type": "function", "name": "look"}, False, {"function": {"name": "look"}}),
    ],
)
def test_the_choice_of_tools_says_whether_there_is_an_image(
    choice: Any, is_drawn: bool, functions: Any, mixed: RunningGateway, mixed_client: httpx.Client
) -> None:
    answer = whole(mixed_client, "Hi", tools=[TOOL, FUNCTION], tool_choice=choice)
    assert any(item["type"] == CALL for item in answer["output"]) == is_drawn
    body: Any = mixed.stages.stages["thinker"].last_body
    chosen: Any = body.get("tool_choice")
    if isinstance(functions, dict):
        assert chosen["function"] == functions["function"]
    else:
        assert (chosen if chosen != "none" else None) == functions


def test_a_drawn_answer_is_gone_on_with(mixed: RunningGateway, mixed_client: httpx.Client) -> None:
    first = whole(mixed_client, "Hi", tools=[TOOL])
    whole(mixed_client, "Hi", previous_response_id=first["id"])
    said = mixed.stages.stages["thinker"].last_request.fields["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({**TOOL, "size": "64by32"}, "tools[0].size"),
        ({**TOOL, "action": "edit"}, "tools[0].action"),
        ({**TOOL, "input_image_mask": {"image_url": DATA_URL}}, "tools[0].input_image_mask"),
    ],
)
def test_what_a_drawn_answer_cannot_have_is_refused_by_its_place(
    tool: dict[str, Any], param: str, mixed_client: httpx.Client
) -> None:
    answer = mixed_client.post(URL, json={"input": "Hi", "tools": [tool]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_model_without_images_refuses_the_tool_and_its_items(tmp_path: Path) -> None:
    with running_gateway(tmp_path, TEXT_ONLY) as running:
        client = httpx.Client(base_url=running.url, timeout=600)
        tool = client.post(URL, json={"input": "Hi", "tools": [TOOL]})
        item = {"type": CALL, "id": "ig_1", "status": "completed", "result": "AAAA"}
        call = client.post(URL, json={"input": [item, *user()]})
        client.close()
    assert (tool.status_code, tool.json()["error"]["param"]) == (400, "tools[0].type")
    assert (call.status_code, call.json()["error"]["param"]) == (400, "input[0].type")
