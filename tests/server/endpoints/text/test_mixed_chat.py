"""Chats answered by words or speech and an image: shapes, ends, usage, refusals."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.gateway.serving import MIXED, MODEL, RunningGateway, running_gateway
from support.media.pictures import pixels_of

URL = "/v1/chat/completions"
ALL = ["text", "audio", "image"]
AUDIO = {"voice": "ethan", "format": "pcm16"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("mixed"), MIXED) as running:
        yield running


def body(modalities: list[str], said: str = "Hi", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}]
    audio = {"audio": AUDIO} if "audio" in modalities else {}
    return {"model": MODEL, "messages": messages, "modalities": modalities, **audio, **more}


def ask(gateway: RunningGateway, asked: dict[str, Any]) -> httpx.Response:
    return httpx.post(gateway.url + URL, json=asked, timeout=600)


def events(gateway: RunningGateway, asked: dict[str, Any]) -> list[dict[str, Any]]:
    lines = ask(gateway, {**asked, "stream": True}).text.splitlines()
    said = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert said[-1] == "[DONE]"
    return [json.loads(one) for one in said[:-1]]


def shape_of(item: Any, form: str = "png") -> tuple[int, ...]:
    head, _, data = item["image_url"]["url"].partition(",")
    assert head == f"data:image/{form};base64"
    return pixels_of(data).shape


def test_a_whole_answer_has_words_sound_and_image(mixed: RunningGateway) -> None:
    answer = ask(mixed, body(ALL, size="64x32", num_inference_steps=3, seed=4)).json()
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["content"], message["audio"]["transcript"]) == (None, "Hello there")
    assert len(base64.b64decode(message["audio"]["data"])) == 2 * 5 * 480
    (item,) = message["images"]
    assert shape_of(item) == (32, 64, 3)
    assert choice["finish_reason"] == "stop"
    details = answer["usage"]["completion_tokens_details"]
    assert (details["text_tokens"], details["audio_tokens"], details["image_tokens"]) == (3, 5, 8)
    assert answer["usage"]["completion_tokens"] == 16
    request = mixed.stages.stages["thinker"].last_request
    assert set(request.path) == {"thinker", "talker", "code2wav", "dit"}
    assert request.image is not None
    assert (request.image.fields["width"], request.image.fields["num_inference_steps"]) == (64, 3)
    assert request.seed == 4
    assert "size" not in request.fields


def test_words_and_an_image_without_sound(mixed: RunningGateway) -> None:
    asked = body(["image", "text"], output_format="webp")
    (choice,) = ask(mixed, asked).json()["choices"]
    assert choice["message"]["content"] == "Hello there"
    assert "audio" not in choice["message"]
    assert shape_of(choice["message"]["images"][0], "webp") == (32, 48, 3)
    assert mixed.stages.stages["thinker"].last_request.path == ["thinker", "dit"]


@pytest.mark.parametrize("modalities", [ALL, ["text", "image"]])
def test_a_stream_has_its_end_after_the_image_and_its_usage_last(
    modalities: list[str], mixed: RunningGateway
) -> None:
    asked = body(modalities, stream_options={"include_usage": True})
    *chunks, usage = events(mixed, asked)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    assert "role" in deltas[0]
    assert sum(len(delta.get("images", ())) for delta in deltas) == 1
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert ends.index("stop") == len(ends) - 1
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens_details"]["image_tokens"] == 6


def test_the_strict_sdk_reads_a_stream(mixed: RunningGateway) -> None:
    with (
        OpenAI(base_url=f"{mixed.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            extra_body={"modalities": ["text", "image"]},
        ) as stream,
    ):
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello there"
    assert final.choices[0].finish_reason == "stop"


def test_an_image_without_words_before_it_opens_the_message(mixed: RunningGateway) -> None:
    first, *_ = events(mixed, body(["text", "image"], "silent"))
    assert first["choices"][0]["delta"]["role"] == "assistant"


def test_a_failure_of_the_image_stage_is_the_answers(mixed: RunningGateway) -> None:
    answer = ask(mixed, body(["text", "image"], size="2048x2048"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "size")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"modalities": ["image"]}, "modalities"),
        ({"modalities": ["audio", "image"]}, "modalities"),
        ({"n": 2}, "n"),
        ({"size": "1x1"}, "size"),
        ({"output_format": "gif"}, "output_format"),
        ({"guidance_scale": 1000}, "guidance_scale"),
    ],
)
def test_what_makes_no_sense_is_refused(
    more: dict[str, Any], param: str, mixed: RunningGateway
) -> None:
    answer = ask(mixed, {**body(["text", "image"]), **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    if more.get("modalities") == ["image"]:
        assert '["text", "audio", "image"]' in answer.json()["error"]["message"]


def test_fields_of_an_image_have_no_effect_without_one_and_that_is_said(
    mixed: RunningGateway,
) -> None:
    with_image = ask(mixed, body(["text", "image"], size="64x32", foo=1))
    assert with_image.headers["x-omnistage-warning"].endswith(": foo")
    without = ask(mixed, body(["text"], size="64x32", foo=1))
    assert without.headers["x-omnistage-warning"].endswith(": foo, size")


def test_image_endpoints_say_where_to_ask(mixed: RunningGateway) -> None:
    answer = httpx.post(f"{mixed.url}/v1/images/generations", json={"prompt": "a cat"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_model")
    assert "in a chat" in answer.json()["error"]["message"]


BESIDE = {
    "model": MODEL,
    "stages": {"thinker": {"kind": "qwen3_omni.thinker"}, "dit": {"kind": "diffusers"}},
    "edges": [],
    "outputs": {"text": "thinker", "image": "dit"},
}


def test_a_graph_with_two_entries_serves_each_from_its_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_gateway(tmp_path_factory.mktemp("beside"), BESIDE) as gateway:
        stages = gateway.stages.stages
        text = ask(gateway, body(["text"])).json()
        assert text["choices"][0]["message"]["content"] == "Hello there"
        assert (len(stages["thinker"].opened), len(stages["dit"].opened)) == (1, 0)
        drawn = httpx.post(f"{gateway.url}/v1/images/generations", json={"prompt": "a cat"})
        assert drawn.status_code == 200
        chat = ask(gateway, body(["image"], "a cat")).json()
        assert shape_of(chat["choices"][0]["message"]["images"][0]) == (32, 48, 3)
        assert (len(stages["thinker"].opened), len(stages["dit"].opened)) == (1, 2)


def test_an_image_may_be_larger_than_what_may_wait_of_other_answers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One image is one event; in a stream of text so much unsent would end the request."""
    folder = tmp_path_factory.mktemp("large")
    with running_gateway(folder, MIXED, max_unsent_bytes=1 << 9) as gateway:
        asked = body(["text", "image"], size="320x320")
        images = [
            item
            for event in events(gateway, asked)
            for choice in event["choices"]
            for item in choice["delta"].get("images", ())
        ]
    (item,) = images
    assert len(item["image_url"]["url"]) > 1 << 9
    assert shape_of(item) == (320, 320, 3)
