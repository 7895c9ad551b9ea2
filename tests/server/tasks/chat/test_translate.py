"""What is refused, with which status, blaming which field."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.prompts import image_part, picture, sound, sound_part
from support.gateway.serving import MODEL, TEXT_ONLY, RunningGateway, running_gateway

from omnistage.stages.messages.to_stage import MediumPiece

WORDS = [{"role": "user", "content": "words"}]
PIXEL = "data:image/png;base64,aGVsbG8="


def body_of(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": WORDS, **more}


def spoken(**more: Any) -> dict[str, Any]:
    audio = {"voice": "ethan", "format": "pcm16"}
    return body_of(**{"modalities": ["text", "audio"], "audio": audio, **more})


def part(**fields: Any) -> dict[str, Any]:
    return body_of(messages=[{"role": "user", "content": [fields]}])


PART = "messages[0].content[0]"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": MODEL}, "messages"),
    (body_of(messages=[]), "messages"),
    (body_of(messages=["hello"]), "messages[0]"),
    (body_of(messages=[{"content": "no role"}]), "messages[0].role"),
    (body_of(messages=[{"role": "user", "content": 3}]), "messages[0].content"),
    (body_of(temperature=3), "temperature"),
    (body_of(top_p=0), "top_p"),
    (body_of(seed=1 << 70), "seed"),
    (body_of(max_completion_tokens=0), "max_completion_tokens"),
    (body_of(n=0), "n"),
    (body_of(top_logprobs=2), "top_logprobs"),
    (body_of(stream_options={"include_usage": True}), "stream_options"),
    (body_of(kv_transfer_params={"a": 1}), "kv_transfer_params"),
    (body_of(chat_template="{{ 1 }}"), "chat_template"),
    (body_of(modalities=["image"]), "modalities"),
    (body_of(modalities=["audio", "video"]), "modalities"),
    (spoken(modalities=["audio"], n=2), "n"),
    (spoken(n=2), "n"),
    (spoken(audio={"voice": "ethan", "format": "vinyl"}), "audio.format"),
    (spoken(include_reasoning=False), "include_reasoning"),
    (body_of(reasoning_effort="some"), "reasoning_effort"),
    (
        body_of(messages=[{**WORDS[0], "audio": {"id": "audio_1"}}]),
        "messages[0].audio",
    ),
    (
        body_of(messages=[{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]),
        "messages[0].function_call",
    ),
    (part(type="thinking", thinking=3), f"{PART}.thinking"),
    (
        part(type="image_url", image_url={"url": PIXEL, "detail": "most"}),
        f"{PART}.image_url.detail",
    ),
    (spoken(audio={"voice": "nobody", "format": "wav"}), "audio.voice"),
    (spoken(audio={"voice": {"id": "nobody"}}), "audio.voice"),
    (spoken(stage_params={"singer": {}}), "stage_params.singer"),
    (spoken(stage_params={"talker": {"temprature": 0}}), "stage_params.talker.temprature"),
    (spoken(stage_params={"talker": {"top_p": 2}}), "stage_params.talker.top_p"),
    (spoken(stage_params={"talker": {"ignore_eos": 3}}), "stage_params.talker.ignore_eos"),
    (
        spoken(stage_params={"talker": {"min_tokens": 3, "max_tokens": 2}}),
        "stage_params.talker",
    ),
    (part(text="no type"), f"{PART}.type"),
    (part(type="image_embeds", image_embeds="AAAA"), f"{PART}.type"),
    (part(type="file", file={"file_id": "f"}), f"{PART}.type"),
    (part(type="text"), f"{PART}.text"),
    (part(type="image_url", image_url={"url": "ftp://a/b.png"}), f"{PART}.image_url.url"),
    (part(type="image_url", image_url={"url": "FTP://a/b.png"}), f"{PART}.image_url.url"),
    (part(type="image_url", image_url="file:///etc/passwd"), f"{PART}.image_url"),
    (part(type="image_url", image_url={"url": "data:image/png,raw"}), f"{PART}.image_url.url"),
    (
        part(type="image_url", image_url={"url": "data:image/png;base64,?"}),
        f"{PART}.image_url.url",
    ),
    (part(type="video_url", video_url={"url": "ftp://a/b.mp4"}), f"{PART}.video_url.url"),
    (part(type="audio_url", audio_url={"url": "ftp://a/b.wav"}), f"{PART}.audio_url.url"),
    (part(type="input_audio", input_audio="x"), f"{PART}.input_audio"),
    (part(type="image_url", image_url=None, uuid="u"), f"{PART}.image_url"),
    (part(type="image_url", uuid="u"), f"{PART}.image_url"),
    (part(type="video_url", video_url={}, uuid="u"), f"{PART}.video_url"),
    (part(type="audio_url", audio_url=None, uuid="u"), f"{PART}.audio_url"),
    (part(type="input_audio", input_audio=None, uuid="u"), f"{PART}.input_audio"),
    (
        part(type="input_audio", input_audio={"data": "not base64!", "format": "wav"}),
        f"{PART}.input_audio.data",
    ),
    (
        part(type="input_audio", input_audio={"data": "data:,hi", "format": "wav"}),
        f"{PART}.input_audio.data",
    ),
    (
        part(type="input_audio", input_audio={"data": "data:;base64,", "format": "wav"}),
        f"{PART}.input_audio.data",
    ),
    (
        part(type="input_audio", input_audio={"data": "aGk=", "format": "a/b"}),
        f"{PART}.input_audio.format",
    ),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_a_refusal_names_the_field(body: dict[str, Any], param: str, client: httpx.Client) -> None:
    response = client.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["code"], str)
    assert param in error["message"]


def test_a_misspelt_stage_parameter_is_told_the_allowed_ones(client: httpx.Client) -> None:
    body = spoken(stage_params={"talker": {"temprature": 0}})
    message = client.post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert "temprature" in message
    assert "repetition_penalty" in message
    body = spoken(stage_params={"singer": {}})
    message = client.post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert "thinker" in message


@pytest.mark.parametrize("data", [b"{", b"[]", b"", b"3"])
def test_a_body_that_is_no_object(data: bytes, client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    response = client.post("/v1/chat/completions", content=data, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model(client: httpx.Client) -> None:
    response = client.post("/v1/chat/completions", json=body_of(model="other"))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_parts_reach_the_stage_without_what_was_not_checked(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    image = image_part(picture(64, 64))
    sneaky = {
        "type": "image_url",
        "uuid": "u",
        "image_url": {**image["image_url"], "detail": "auto"},
        "audio_url": "http://a/b.wav",
    }
    heard = sound_part(sound(1600))
    text = {"type": "text", "text": "words", "image_url": "http://a/b.png"}
    body = body_of(messages=[{"role": "user", "content": [sneaky, heard, text]}])
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert "uuid" not in response.headers["x-omnistage-warning"]
    thinker = gateway.stages.stages["thinker"]
    *_, piece = (one for one in thinker.seen if isinstance(one.message, MediumPiece))
    assert isinstance(piece.message, MediumPiece)
    assert thinker.last_body["messages"][0]["content"] == [
        image,
        {"type": "audio_url", "audio_url": {"url": piece.message.name}},
        {"type": "text", "text": "words"},
    ]
    assert piece.tensors["data"].numpy().tolist() == (sound(1600) / 32768).tolist()


@pytest.mark.parametrize("role", ["critic", "tool-2"])
def test_a_role_of_the_template_is_sent_where_the_stage_s_options_name_it(
    role: str, tmp_path: Path
) -> None:
    thinker = {"kind": "qwen3_omni.thinker", "options": {"roles": ["critic", "tool-2"]}}
    graph = {**TEXT_ONLY, "stages": {"thinker": thinker}}
    messages = [{"role": role, "content": "Hm."}, *WORDS]
    with (
        running_gateway(tmp_path, graph) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        body = body_of(messages=messages)
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert gateway.stages.stages["thinker"].last_body["messages"] == messages
        assert client.post("/tokenize", json=body).status_code == 200
        body["messages"][0]["role"] = "judge"
        error = client.post("/v1/chat/completions", json=body).json()["error"]
        assert error["param"] == "messages[0].role"
        assert "critic" in error["message"]


@pytest.mark.parametrize("head", ["data:;base64,", "data:audio/wav;base64,"])
def test_a_sound_may_come_as_a_data_url(
    head: str, gateway: RunningGateway, client: httpx.Client
) -> None:
    heard = sound_part(sound(1600))
    url = {**heard["input_audio"], "data": head + heard["input_audio"]["data"]}
    content = [{"type": "input_audio", "input_audio": url}, {"type": "text", "text": "words"}]
    body = body_of(messages=[{"role": "user", "content": content}])
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    seen = gateway.stages.stages["thinker"].seen
    *_, piece = (one for one in seen if isinstance(one.message, MediumPiece))
    assert piece.tensors["data"].numpy().tolist() == (sound(1600) / 32768).tolist()


@pytest.mark.parametrize("url", ["https://a.b/c.wav", "HTTP://a.b/c.wav", "file:///c.wav"])
def test_the_url_of_a_file_in_place_of_base64_is_refused_with_the_part_that_takes_it(
    url: str, client: httpx.Client
) -> None:
    heard = {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}
    messages = [{"role": "user", "content": [heard]}]
    chat = client.post("/v1/chat/completions", json={"messages": messages})
    response = client.post("/v1/responses", json={"input": messages})
    for answer, place in ((chat, "messages"), (response, "input")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_value")
        assert error["param"] == f"{place}[0].content[0].input_audio.data"
        assert "not the URL of a file: a part audio_url takes one" in error["message"]
    given = {"type": "audio_url", "audio_url": {"url": url}}
    fetched = client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": [given]}]}
    )
    assert "must be base64" not in fetched.json()["error"]["message"]  # this one was looked for


@pytest.mark.parametrize("value", [b"1e1", b"1" + b"0" * 40, b'"\\ud800"'])
def test_values_that_only_json_knows(value: bytes, client: httpx.Client) -> None:
    messages = b'"messages": [{"role": "user", "content": "words"}]'
    headers = {"content-type": "application/json"}
    data = b"{" + messages + b', "unknown": ' + value + b"}"
    response = client.post("/v1/chat/completions", content=data, headers=headers)
    assert response.status_code in (200, 400)


def test_a_request_too_large_for_the_wire(client: httpx.Client) -> None:
    body = body_of(messages=[{"role": "user", "content": "x" * (17 << 20)}])
    assert client.post("/v1/chat/completions", json=body).status_code == 413


def test_a_voice_is_found_whatever_its_case(client: httpx.Client, gateway: RunningGateway) -> None:
    body = spoken(audio={"voice": {"id": "Ethan"}, "format": "wav"})
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert gateway.stages.stages["thinker"].last_request.speaker == "ethan"


def test_audio_of_a_graph_without_it(tmp_path: Any) -> None:
    with running_gateway(tmp_path, TEXT_ONLY) as gateway:
        response = httpx.post(f"{gateway.url}/v1/chat/completions", json=spoken())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "modalities"
