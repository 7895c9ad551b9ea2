"""Mutated requests for and about sound: an answer or a refusal that names a field, no failure."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api.doors import ONE_SHOT
from support.gateway.serving import MODEL, OMNI, running_gateway
from support.hostile.bad_parts import good_wav
from support.hostile.fuzz import assert_answered, damaged, fuzzed, odd_values

from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.server.tasks.speech.voice_fields import VoiceRequest
from omnistage.server.tasks.transcripts.transcription_fields import TranscriptionRequest
from omnistage.stages.messages.to_gateway import Speech

BOUNDARY = "b"
CLONING = Speech(takes_sound=True)
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
def forms(draw: st.DrawFn, model: Any, file_name: str, good: tuple[str, ...] = ()) -> bytes:
    """A form of a few parts, now and then cut or with bytes of something else in it."""
    parts = [(f'name="{name}"', "good") for name in good]
    parts += [(f'name="{draw(names(model))}"', draw(words)) for _ in range(2)]
    data = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n".encode(
            "utf-8", "surrogatepass"
        )
        for head, text in parts
    )
    head = f'Content-Disposition: form-data; name="{file_name}"; filename="f"'
    file = f"--{BOUNDARY}\r\n{head}\r\n\r\n"
    data += file.encode() + good_wav(16_000) + f"\r\n--{BOUNDARY}--\r\n".encode()
    return damaged(draw, data, one_in=2, max_cut=40)


@fuzzed()
@given(
    data=forms(TranscriptionRequest, "file"),
    url=st.sampled_from(["transcriptions", "translations"]),
)
def test_no_form_makes_the_gateway_fail(data: bytes, url: str, client: httpx.Client) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    assert_answered(client.post(f"/v1/audio/{url}", content=data, headers=headers), data)


@pytest.fixture(scope="module")
def cloning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose model makes voices of sounds."""
    with (
        running_gateway(tmp_path_factory.mktemp("cloning"), OMNI, speech=CLONING) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600, limits=ONE_SHOT) as client,
    ):
        yield client


@fuzzed()
@given(data=forms(VoiceRequest, "audio_sample", ("name", "consent")))
def test_no_form_of_a_voice_makes_the_gateway_fail(data: bytes, cloning: httpx.Client) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    response = cloning.post("/v1/audio/voices", content=data, headers=headers)
    assert_answered(response, data)
    if response.status_code == 200:  # so that its name is free again
        assert cloning.delete(f"/v1/audio/voices/{response.json()['id']}").status_code == 200
