"""Responses with images: `image_generation_call` items, their events in order, refusals."""

import base64
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import response_output_item as items
from support.api.openai_spec import assert_valid
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
from support.gateway.serving import MODEL, RunningGateway
from support.media.pictures import mask_png, pixels_of

BEGIN = ["created", "in_progress"]


def part(url: str = DATA_URL) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def test_the_strict_sdk_reads_an_image(images: RunningGateway, images_openai: OpenAI) -> None:
    tools: Any = [TOOL]
    made = images_openai.responses.create(model=MODEL, input="a red cat", tools=tools)
    (item,) = made.output
    assert isinstance(item, items.ImageGenerationCall)
    assert item.result is not None
    assert pixels_of(item.result).shape == (32, 64, 3)
    assert (item.status, item.size, item.output_format) == ("completed", "64x32", "png")
    assert (item.background, item.quality) == ("opaque", "high")
    assert made.status == "completed"
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens) == (3, 8)
    assert images.stages.stages["dit"].opened[-1].message.fields["prompt"] == "a red cat"


@pytest.mark.parametrize("tools", [None, [TOOL], [{**TOOL, "partial_images": 2}]])
def test_the_events_of_an_image_come_in_openai_s_order(
    tools: Any, images_client: httpx.Client
) -> None:
    events = events_of(images_client, **({} if tools is None else {"tools": tools}))
    num_previews = 0 if tools is None else tools[0].get("partial_images", 0)
    previews = [event for event in events if event["type"].endswith("partial_image")]
    assert kinds(events) == [
        *BEGIN,
        *DRAWN,
        *[f"{CALL}.partial_image"] * num_previews,
        *END,
        "completed",
    ]
    assert [event["partial_image_index"] for event in previews] == list(range(num_previews))
    for event in previews:
        assert pixels_of(event["partial_image_b64"]).shape == (32, 64, 3)
    added, done = events[2]["item"], events[-2]["item"]
    assert (added["status"], added["result"]) == ("in_progress", None)
    assert {event["item_id"] for event in events if "item_id" in event} == {done["id"]}
    assert events[-1]["response"]["output"] == [done]
    assert done["status"] == "completed"


def test_the_sdk_s_stream_parses_every_event(images_openai: OpenAI) -> None:
    tools: Any = [{**TOOL, "partial_images": 1}]
    with images_openai.responses.create(
        model=MODEL, input="a cat", stream=True, tools=tools
    ) as stream:
        names = [str(event.type) for event in stream]
    assert names.count(f"response.{CALL}.partial_image") == 1
    assert names[-1] == "response.completed"


def test_the_tool_says_what_an_image_request_says(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    tool = {
        **{"type": "image_generation", "model": "gpt-image-1", "moderation": "low"},
        **{"quality": "low", "background": "transparent", "output_format": "webp"},
        **{"num_inference_steps": 2, "negative_prompt": "dogs", "width": 64, "height": 48},
    }
    answer = whole(images_client, tools=[tool], tool_choice={"type": "image_generation"}, seed=3)
    (item,) = answer["output"]
    assert pixels_of(item["result"]).shape == (48, 64, 4)
    assert (item["background"], item["output_format"]) == ("transparent", "webp")
    assert item["quality"] == "low"
    assert answer["tools"] == [tool]
    request = images.stages.stages["dit"].opened[-1].message
    assert (request.seed, request.fields["num_inference_steps"]) == (3, 2)
    assert request.fields["negative_prompt"] == "dogs"


def test_previews_are_for_streams_and_have_no_effect_without_one(
    images_client: httpx.Client,
) -> None:
    assert len(whole(images_client, tools=[{**TOOL, "partial_images": 3}])["output"]) == 1


@pytest.mark.parametrize(
    ("action", "tensors"), [(None, {"image0"}), ("edit", {"image0"}), ("generate", set())]
)
def test_images_of_the_last_message_are_edited_unless_a_new_one_is_wanted(
    action: str | None, tensors: set[str], images: RunningGateway, images_client: httpx.Client
) -> None:
    tool = {"type": "image_generation", **({} if action is None else {"action": action})}
    said = [{"role": "system", "content": "Draw."}, *user(part())]
    assert len(whole(images_client, said, tools=[tool])["output"]) == 1
    opened = images.stages.stages["dit"].opened[-1]
    assert (opened.message.fields["prompt"], set(opened.tensors)) == ("a hat", tensors)


def test_a_mask_comes_with_its_image(images: RunningGateway, images_client: httpx.Client) -> None:
    mask = base64.b64encode(mask_png(48, 32)).decode()
    url = {"image_url": f"data:image/png;base64,{mask}"}
    tool = {"type": "image_generation", "input_image_mask": url}
    assert len(whole(images_client, user(part()), tools=[tool])["output"]) == 1
    assert set(images.stages.stages["dit"].opened[-1].tensors) == {"image0", "mask"}


def test_a_response_with_an_image_is_kept_and_gone_on_with(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    first = whole(images_client, "a cat")
    assert images_client.get(f"{URL}/{first['id']}").json() == first
    more = whole(images_client, "a dog", previous_response_id=first["id"])
    assert images.stages.stages["dit"].opened[-1].message.fields["prompt"] == "a dog"
    kept = images_client.get(f"{URL}/{more['id']}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in kept] == ["message", CALL, "message"]
    assert kept[1] == first["output"][0]
    again = whole(images_client, [*first["output"], *user()])
    items_of = images_client.get(f"{URL}/{again['id']}/input_items?order=asc").json()
    assert_valid(items_of, "ResponseItemList", "responses")
    assert items_of["data"][0]["result"] == first["output"][0]["result"]


def test_a_failure_after_the_first_event_is_one_and_the_call_has_failed(
    images_client: httpx.Client,
) -> None:
    events = events_of(images_client, "fail later")
    assert kinds(events) == [*BEGIN, *DRAWN, "failed"]
    (item,) = events[-1]["response"]["output"]
    assert (item["status"], item["result"]) == ("failed", None)


def test_fields_of_a_text_are_named_as_without_effect(images_client: httpx.Client) -> None:
    body = {"model": MODEL, "input": "a cat", "temperature": 0.5, "instructions": "Draw."}
    tool = {"type": "image_generation", "n": 2, "colour": "red"}
    answer = images_client.post(URL, json={**body, "tools": [tool]})
    assert answer.headers["x-omnistage-warning"].endswith(
        ": instructions, temperature, tools[0].colour, tools[0].n"
    )
    plain = images_client.post(URL, json={"model": MODEL, "input": "a cat", "tools": [TOOL]})
    assert "x-omnistage-warning" not in plain.headers


REFUSED = [
    ({"tools": [{**TOOL, "size": "64by32"}]}, "tools[0].size"),
    ({"tools": [{**TOOL, "size": "5x5"}]}, "tools[0].size"),
    ({"tools": [{**TOOL, "quality": "best"}]}, "tools[0].quality"),
    ({"tools": [{**TOOL, "partial_images": 4}], "stream": True}, "tools[0].partial_images"),
    ({"tools": [{**TOOL, "output_compression": 5}]}, "tools[0].output_compression"),
    ({"tools": [{**TOOL, "action": "draw"}]}, "tools[0].action"),
    ({"tools": [{**TOOL, "action": "edit"}]}, "tools[0].action"),
    ({"tools": [{**TOOL, "input_image_mask": "x"}]}, "tools[0].input_image_mask"),
    (
        {"tools": [{**TOOL, "input_image_mask": {"file_id": "file-1"}}]},
        "tools[0].input_image_mask.file_id",
    ),
    (
        {"tools": [{**TOOL, "input_image_mask": {"image_url": "x"}}]},
        "tools[0].input_image_mask.image_url",
    ),
    ({"tools": [TOOL, TOOL]}, "tools[1]"),
    ({"tools": [FUNCTION]}, "tools[0].type"),
    ({"tool_choice": "none"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
    ({"input": [{"role": "assistant", "content": "a cat"}]}, "input"),
    ({"input": [{"role": "user", "content": [part()]}]}, "input[0].content"),
    ({"input": user(part("data:image/png;base64,AAAA"))}, "input[0].content[1].image_url"),
    ({"input": user({"type": "input_audio", "input_audio": {}})}, "input[0].content[1]"),
    ({"input": ""}, "input"),
    ({"input": [{"role": "user", "content": {"type": 0}}, *user()]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["x"]}, *user()]}, "input[0].content[0]"),
    ({"input": [{"type": CALL, "result": -1}, *user()]}, "input[0].result"),
    ({"background": True}, "background"),
    ({"input": "refuse", "tools": [TOOL]}, "tools[0].size"),
    ({"model": "other"}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(param) for _, param in REFUSED])
def test_what_an_image_cannot_be_is_refused_by_its_place(
    fields: dict[str, Any], param: str, images_client: httpx.Client
) -> None:
    answer = images_client.post(URL, json={"input": "a cat", **fields})
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400), error
    assert_valid(answer.json(), "ErrorResponse", "responses")
    assert str(error["param"]).startswith(param), error
