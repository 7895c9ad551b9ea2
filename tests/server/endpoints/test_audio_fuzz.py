"""Mutated requests for and about sound: an answer or a refusal that names a field, no failure."""

import json
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st
from support.bad_input import good_wav
from support.fuzz import assert_answered, damaged, fuzzed, odd_values
from support.gateway import MODEL

from omnistage.server.endpoints.speech_fields import SpeechRequest
from omnistage.server.endpoints.transcription_fields import TranscriptionRequest

BOUNDARY = "b"
words = st.text(max_size=6) | st.sampled_from(
    ["", "\0", "\ud800", "ethan", "words", "mp3", "sse", "true", "1", "-1", "1e999", "NaN", "json"]
)
values = odd_values(words, max_leaves=4)


def names(model: Any) -> st.SearchStrategy[str]:
    known = sorted(model.model_fields)
    return st.sampled_from([*known, *(f"{name}[]" for name in known)]) | words


@fuzzed()
@given(more=st.dictionaries(names(SpeechRequest), values, max_size=3))
def test_no_speech_request_makes_the_gateway_fail(
    more: dict[str, Any], client: httpx.Client
) -> None:
    body = json.dumps({"model": MODEL, "input": "words", **more}).encode()
    headers = {"content-type": "application/json"}
    assert_answered(client.post("/v1/audio/speech", content=body, headers=headers), body)


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
    return damaged(draw, data, one_in=2, max_cut=40)


@fuzzed()
@given(data=forms(), url=st.sampled_from(["transcriptions", "translations"]))
def test_no_form_makes_the_gateway_fail(data: bytes, url: str, client: httpx.Client) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    assert_answered(client.post(f"/v1/audio/{url}", content=data, headers=headers), data)
