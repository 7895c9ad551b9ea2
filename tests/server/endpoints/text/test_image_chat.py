"""Chats answered by pictures: shapes that strict clients take, prompts, refusals."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.api.openai_answers import ask
from support.gateway.serving import EMBEDDING, MODEL, RunningGateway, running_gateway
from support.media.pictures import pixels_of, png

from omnistage.connectors.chunk import Chunk
from omnistage.stages.messages.to_stage import Request

URL = "/v1/chat/completions"
DATA_URL = "data:image/png;base64," + base64.b64encode(png(48, 32)).decode()
TEXT = {"type": "text", "text": "a hat"}
PICTURE = {"type": "image_url", "image_url": {"url": DATA_URL}}
BOTH = ["text", "image"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def picture_of(item: Any) -> tuple[int, ...]:
    assert (item["index"], item["type"]) == (0, "image_url")
    head, _, data = item["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    return pixels_of(data).shape


def body_of(gateway: RunningGateway) -> Chunk[Request]:
    return gateway.stages.stages["dit"].opened[-1]


@pytest.mark.parametrize("modalities", [BOTH, ["image"], None])
def test_the_strict_sdk_takes_a_picture(
    modalities: list[str] | None, images: RunningGateway, images_openai: OpenAI
) -> None:
    more: dict[str, Any] = {} if modalities is None else {"modalities": modalities}
    messages: Any = [
        {"role": "system", "content": "Draw."},
        user("a cat"),
        {"role": "assistant", "content": None, "images": [PICTURE]},
        user([TEXT, {"type": "text", "text": "in red"}]),
    ]
    made = images_openai.chat.completions.create(
        model=MODEL,
        messages=messages,
        seed=3,
        extra_body={"size": "64x32", "num_inference_steps": 2, **more},
    )
    (choice,) = made.choices
    assert choice.message.content is None
    assert choice.finish_reason == "stop"
    (item,) = choice.message.images  # type: ignore[attr-defined]  # not in the SDK's types
    assert picture_of(item) == (32, 64, 3)
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (4, 8)
    request = body_of(images)
    assert request.message.fields["prompt"] == "a hat\nin red"
    assert request.message.fields["num_inference_steps"] == 2
    assert request.message.seed == 3


def test_a_stream_has_its_role_once_and_usage_last(images_openai: OpenAI) -> None:
    with images_openai.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "a cat"}],
        n=2,
        stream_options={"include_usage": True},
        extra_body={"modalities": BOTH},
    ) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
    roles, pictures, ends = [], [], []
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        assert chunk.usage is None
        delta = choice.delta.model_dump(exclude_unset=True)
        assert delta.get("content") is None
        roles += [choice.index] if delta.get("role") == "assistant" else []
        pictures += [(choice.index, *picture_of(item)) for item in delta.get("images", ())]
        ends += [choice.index] if choice.finish_reason == "stop" else []
    assert roles == ends == [0, 1]
    assert pictures == [(0, 32, 48, 3), (1, 32, 48, 3)]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * 2 * 3


def test_pictures_stand_in_answers_of_openai_s_schema(images_openai: OpenAI) -> None:
    """Which allows properties beside its own, such as `images`."""
    answers = ask(
        images_openai,
        model=MODEL,
        messages=[user("a cat")],
        n=2,
        extra_body={"modalities": BOTH},
    )
    for choice in answers.whole.choices:
        (item,) = choice.message.images  # type: ignore[attr-defined]  # not in the SDK's types
        assert picture_of(item) == (32, 48, 3)
    assert answers.finish_reasons == ["stop"] * 3
    deltas = [choice["delta"] for event in answers.events for choice in event["choices"]]
    assert sum("images" in delta for delta in deltas) == 2


def test_a_thought_before_an_image_is_its_choices_reasoning(images_openai: OpenAI) -> None:
    more = {"modalities": BOTH, "extra": {"think": True}}
    answers = ask(images_openai, model=MODEL, messages=[user("a cat")], n=2, extra_body=more)
    deltas = [choice["delta"] for event in answers.events for choice in event["choices"]]
    for name in ("reasoning", "reasoning_content"):
        messages = [choice.message.model_dump() for choice in answers.whole.choices]
        assert [one[name] for one in messages] == ["Thought 0.", "Thought 1."]
        assert [one[name] for one in deltas if name in one] == ["Thought 0.", "Thought 1."]
    plain = images_openai.chat.completions.create(model=MODEL, messages=[user("a cat")])  # type: ignore[list-item]
    assert "reasoning" not in plain.choices[0].message.model_dump()


def test_pictures_of_the_message_are_edited(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    body = {"messages": [user([PICTURE, TEXT, PICTURE])], "stream": True, "size": "16x16"}
    answer = images_client.post(URL, json=body)
    assert answer.status_code == 200
    assert answer.text.rstrip().endswith("data: [DONE]")
    assert '"usage"' not in answer.text
    assert set(body_of(images).tensors) == {"image0", "image1"}


def test_what_has_no_effect_is_named(images_client: httpx.Client) -> None:
    known = {"user": "me", "metadata": {}, "size": "auto", "moderation": "low"}
    body = {"messages": [user("cat")], "temperature": 0.5, "typo": 1, **known}
    warning = images_client.post(URL, json=body).headers["x-omnistage-warning"]
    assert warning.endswith(": temperature, typo")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"modalities": ["text"]}, "modalities"),
        ({"modalities": ["image", "audio"]}, "modalities"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages"),
        ({"messages": [user([PICTURE])]}, "messages[0].content"),
        ({"messages": [user("")]}, "messages[0].content"),
        ({"messages": [user(None)]}, "messages[0].content"),
        ({"messages": [user("a"), {"role": "x"}]}, "messages[1].role"),
        ({"messages": [user([{"type": "x"}])]}, "messages[0].content[0].type"),
        (
            {"messages": [user([TEXT, {**PICTURE, "image_url": "data:image/png;base64,aaaa"}])]},
            "messages[0].content[1].image_url",
        ),
        (
            {"messages": [user([{"type": "video_url", "video_url": {"url": DATA_URL}}])]},
            "messages[0].content[0]",
        ),
        ({"n": 11}, "n"),
        ({"size": "1x1"}, "size"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_what_cannot_be_made_is_a_400(
    more: dict[str, Any], param: str, images_client: httpx.Client
) -> None:
    answer = images_client.post(URL, json={"messages": [user("a")], **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_stage_s_refusal_of_a_stream_has_its_status(images_client: httpx.Client) -> None:
    answer = images_client.post(URL, json={"messages": [user("refuse")], "stream": True})
    assert answer.status_code == 400


def test_a_model_without_pictures_says_so(client: httpx.Client) -> None:
    answer = client.post(URL, json={"messages": [user("a")], "modalities": ["image"]})
    assert answer.status_code == 400
    assert "this model makes" in answer.json()["error"]["message"]


BOTH_KINDS = {
    "model": MODEL,
    "stages": {"dit": {"kind": "diffusers"}, "camera": {"kind": "diffusers"}},
    "edges": [],
    "outputs": {"image": "dit", "video": "camera"},
}
CAMERA = {**BOTH_KINDS, "stages": {"camera": {"kind": "diffusers"}}, "outputs": {"video": "camera"}}
SPEAKER = {
    "model": MODEL,
    "stages": {"talker": {"kind": "qwen3_tts.talker"}, "code2wav": {"kind": "qwen3_tts.code2wav"}},
    "edges": [{"from": "talker", "to": "code2wav"}],
    "outputs": {"audio": "code2wav"},
}


def test_a_chat_without_modalities_is_answered_by_images_where_there_is_no_text(
    tmp_path: Path,
) -> None:
    body = {"messages": [user("a fox")]}
    with (
        running_gateway(tmp_path, BOTH_KINDS) as running,
        httpx.Client(base_url=running.url, timeout=600) as client,
    ):
        answer = client.post(URL, json=body)
        assert answer.status_code == 200, answer.text
        (image,) = answer.json()["choices"][0]["message"]["images"]
        assert picture_of(image)[2] == 3
        lines = client.post(URL, json={**body, "stream": True}).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert sum(len(delta.get("images", ())) for delta in deltas) == 1


@pytest.mark.parametrize(
    ("graph", "makes"),
    [
        (CAMERA, "video: use /v1/videos"),
        (SPEAKER, "audio: use /v1/audio/speech, or /v1/audio/generate for sounds and music"),
        (EMBEDDING, "embedding: use /v1/embeddings"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_graph_that_cannot_answer_chats_says_what_it_makes_and_blames_no_field(
    graph: dict[str, Any], makes: str, stream: bool, tmp_path: Path
) -> None:
    with running_gateway(tmp_path, graph) as running:
        body = {"messages": [user("a fox")], "stream": stream}
        answer = httpx.post(running.url + URL, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (None, "unsupported_model")
    assert error["message"] == f"This model makes no text; it makes {makes}."


IMAGE = '/v1/images/generations, or modalities ["image"] in a chat'
ASKED_OF_IMAGES = [
    (URL, {"messages": [user("a")], "modalities": ["text"]}, "modalities", "makes image"),
    (URL, {"messages": [user("a")], "modalities": ["audio"]}, "modalities", "makes image"),
    ("/v1/completions", {"prompt": "a"}, None, "makes image"),
    ("/v1/embeddings", {"input": "a"}, None, "makes image"),
    ("/tokenize", {"prompt": "a"}, None, "makes image"),
]


@pytest.mark.parametrize(("path", "body", "param", "makes"), ASKED_OF_IMAGES)
def test_a_graph_of_images_names_the_endpoint_that_makes_them(
    path: str, body: dict[str, Any], param: str | None, makes: str, images_client: httpx.Client
) -> None:
    answer = images_client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert f"{makes}: use {IMAGE}" in error["message"]


def test_a_late_failure_ends_the_stream(images_client: httpx.Client) -> None:
    body = {"messages": [user("fail later")], "stream": True}
    lines = [line for line in images_client.post(URL, json=body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "server_error"
