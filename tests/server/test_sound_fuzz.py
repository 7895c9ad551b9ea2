"""Mutated requests for and about sound: an answer or a refusal that names a field, no failure."""

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bad_input import good_wav
from support.gateway import MODEL

from omnistage.server.speech import SpeechRequest
from omnistage.server.transcription_fields import TranscriptionRequest

BOUNDARY = "b"
words = st.text(max_size=6) | st.sampled_from(
    ["", "\0", "\ud800", "ethan", "words", "mp3", "sse", "true", "1", "-1", "1e999", "NaN", "json"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=4,
)
fuzz = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def names(model: Any) -> st.SearchStrategy[str]:
    known = sorted(model.model_fields)
    return st.sampled_from([*known, *(f"{name}[]" for name in known)]) | words


def check(response: httpx.Response, sent: Any) -> None:
    assert response.status_code < 500, (sent, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["code"], str), (sent, error)


@fuzz
@given(more=st.dictionaries(names(SpeechRequest), values, max_size=3))
def test_no_speech_request_makes_the_gateway_fail(
    more: dict[str, Any], client: httpx.Client
) -> None:
    body = json.dumps({"model": MODEL, "input": "words", **more}).encode()
    headers = {"content-type": "application/json"}
    check(client.post("/v1/audio/speech", content=body, headers=headers), body)


@st.composite
def forms(draw: st.DrawFn) -> bytes:
    """A form of a few parts, now and then cut or with bytes of something else in it."""
    parts = [(f'name="{draw(names(TranscriptionRequest))}"', draw(words)) for _ in range(2)]
    data = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n".encode(
            "utf-8", "surrogatepass"
        )
        for head, text in parts
    )
    file = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    data += file.encode() + good_wav() + f"\r\n--{BOUNDARY}--\r\n".encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 40)) :]
    return data


@fuzz
@given(data=forms(), url=st.sampled_from(["transcriptions", "translations"]))
def test_no_form_makes_the_gateway_fail(data: bytes, url: str, client: httpx.Client) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    check(client.post(f"/v1/audio/{url}", content=data, headers=headers), data)
