"""Transcripts and translations that are refused, fail or are given up."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from support.api.openai_spec import assert_valid
from support.faults.hanging_up import hang_up
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.gateway.transcripts import TRANSLATIONS, URL, WAV, instruction, last_body, post

from omnistage.server.tasks.transcripts.transcription_fields import (
    AudioRequest,
    TranscriptionRequest,
    TranslationRequest,
)

REFUSED = [
    ({"file": b""}, "file", "invalid_value"),
    ({"file": b"no sound"}, "file", "invalid_value"),
    ({"temperature": "1.5"}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"response_format": "xml"}, "response_format", "invalid_value"),
    ({"response_format": "srt"}, "response_format", "unsupported_parameter"),
    ({"response_format": "vtt"}, "response_format", "unsupported_parameter"),
    ({"prompt": "a\0b"}, "prompt", "invalid_value"),
    ({"prompt": "x" * 16_385}, "prompt", "invalid_value"),
    ({"model": "whisper-1"}, "model", "model_not_found"),
    ({"prompt": "refuse"}, "file", "context_length_exceeded"),
    ({"prompt": "cut"}, "file", "context_length_exceeded"),
]
OF_TRANSCRIPTS = [
    ({"language": "x<y"}, "language", "invalid_value"),
    ({"response_format": "diarized_json"}, "response_format", "unsupported_parameter"),
    ({"response_format": "text", "stream": "true"}, "response_format", "invalid_value"),
    ({"timestamp_granularities[]": "segment"}, "timestamp_granularities", "invalid_value"),
    (
        {"timestamp_granularities[]": "word", "response_format": "verbose_json"},
        "timestamp_granularities",
        "unsupported_parameter",
    ),
    ({"include[]": "logprobs", "response_format": "text"}, "include", "invalid_value"),
    ({"include[]": "mood"}, "include[0]", "invalid_value"),
    ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy", "unsupported_parameter"),
    ({"known_speaker_names[]": "Ann"}, "known_speaker_names", "unsupported_parameter"),
    ({"known_speaker_references[]": "data:x"}, "known_speaker_references", "unsupported_parameter"),
    ({"language": ["de", "en"]}, "language", "invalid_value"),
    ({"a[b[": "1"}, "a[b[", "invalid_value"),
]
ALL = [
    *((TRANSLATIONS, *case) for case in [*REFUSED, ({"stream": "true"}, "stream", "")]),
    *((URL, *case) for case in [*REFUSED, *OF_TRANSCRIPTS]),
]


@pytest.mark.parametrize(("url", "fields", "param", "code"), ALL)
def test_a_refusal_names_the_field(
    url: str, fields: dict[str, Any], param: str, code: str, client: httpx.Client
) -> None:
    response = post(client, url, **fields)
    assert response.status_code == (404 if code == "model_not_found" else 400), response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["code"] == code or not code
    assert_valid(response.json(), "ErrorResponse", "audio")


EMPTY_LISTS = {f"{name}[]": "" for name in ("languages", "keywords", "include")}


@pytest.mark.parametrize(
    ("url", "kind"), [(URL, TranscriptionRequest), (TRANSLATIONS, TranslationRequest)]
)
def test_fields_that_are_sent_empty_are_not_given(
    url: str, kind: type[AudioRequest], client: httpx.Client, gateway: RunningGateway
) -> None:
    optional = {name: "" for name in kind.model_fields if name != "file"}
    response = post(client, url, **optional, **EMPTY_LISTS, **{"chunking_strategy[type]": ""})
    assert response.status_code == 200, response.text
    assert "x-omnistage-warning" not in response.headers
    told, said = last_body(gateway), instruction(gateway)
    assert post(client, url).json() == response.json()
    assert instruction(gateway) == said
    # A sound's name is new each time.
    assert {**last_body(gateway), "messages": None} == {**told, "messages": None}


@pytest.mark.parametrize("url", [URL, TRANSLATIONS])
@pytest.mark.parametrize("more", ["", "; filename*=UTF-8''a%20b.wav"])
def test_a_file_without_a_filename_is_refused_as_none(
    url: str, more: str, client: httpx.Client
) -> None:
    head = f'--b\r\nContent-Disposition: form-data; name="file"{more}\r\n\r\n'.encode()
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    response = client.post(url, content=head + WAV + b"\r\n--b--\r\n", headers=kind)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "file")
    assert 'filename="' in error["message"]


def test_a_form_without_a_file_and_bodies_that_are_no_form(client: httpx.Client) -> None:
    missing = client.post(URL, files={"model": (None, MODEL)})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")
    for kind in ("multipart/form-data", "text/plain", "multipart/form-data; boundary="):
        refused = client.post(URL, content=b"x", headers={"Content-Type": kind})
        assert refused.status_code == 415
    broken = client.post(
        URL, content=b"x", headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert broken.status_code == 400
    assert broken.json()["error"]["type"] == "invalid_request_error"


def test_unknown_fields_are_named(client: httpx.Client) -> None:
    response = post(client, zork="1")
    assert response.headers["x-omnistage-warning"] == "unknown fields without effect: zork"


def test_a_failure_in_a_stream_is_an_event(client: httpx.Client) -> None:
    lines = post(client, stream="true", prompt="cut").text.splitlines()
    assert '"code":"context_length_exceeded"' in [line for line in lines if line][-1]


def test_a_client_that_hangs_up_frees_the_stages(
    gateway: RunningGateway,
) -> None:
    files = {"file": ("upload", WAV)}
    thinker = gateway.stages.stages["thinker"]
    hang_up(gateway.url + URL, lambda: thinker.tasks, data={"prompt": "endless"}, files=files)
    gateway.wait_until_idle()


def test_a_graph_that_does_not_hear_says_so(tmp_path: Path) -> None:
    text = {
        **OMNI,
        "stages": {"writer": {"kind": "vllm.text"}},
        "edges": [],
        "outputs": {"text": "writer"},
    }
    with (
        running_gateway(tmp_path, text) as gateway,
        OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as openai,
    ):
        with pytest.raises(BadRequestError) as raised:
            openai.audio.transcriptions.create(model=MODEL, file=WAV)
        assert raised.value.code == "unsupported_model"


@pytest.mark.parametrize("url", [URL, TRANSLATIONS])
def test_the_form_is_described(url: str, client: httpx.Client) -> None:
    operation = client.get("/openapi.json").json()["paths"][url]["post"]
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["file"]["format"] == "binary"
    assert form["required"] == ["file"]
