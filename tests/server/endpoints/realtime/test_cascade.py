"""A transcriber, a text model and a speech model that no edge joins: each alone, and a session."""

import io
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from support.gateway.cascade import TRANSCRIBER
from support.gateway.serving import MODEL, RunningGateway, running_gateway
from support.realtime.cascade_talk import TEXT, asked_of, speak
from support.realtime.client import talking

from omnistage.stages.messages.body import Transcribe

Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("by_loudness")


@pytest.fixture(scope="module")
def gateway(cascade: RunningGateway) -> RunningGateway:
    return cascade


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway of a transcriber alone."""
    with running_gateway(tmp_path_factory.mktemp("transcriber"), TRANSCRIBER) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: RunningGateway, transcriber: RunningGateway) -> Iterator[None]:
    yield
    gateway.wait_until_idle()
    transcriber.wait_until_idle()


@pytest.fixture(scope="module")
def wav() -> bytes:
    """Half a second of silence."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(16_000))
    return buffer.getvalue()


def openai(gateway: RunningGateway) -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def test_a_transcriber_alone_transcribes_and_streams(
    transcriber: RunningGateway, wav: bytes
) -> None:
    with openai(transcriber) as client:
        whole = client.audio.transcriptions.create(model=MODEL, file=wav)
        assert whole.text == "I speak for 0.5 s"
        assert whole.usage is not None
        assert whole.usage.type == "tokens"
        details = whole.usage.input_token_details
        assert details is not None
        assert details.audio_tokens == 4
        stream = client.audio.transcriptions.create(model=MODEL, file=wav, stream=True)
        *deltas, done = [event.to_dict() for event in stream]
        assert "".join(str(event["delta"]) for event in deltas) == done["text"] == whole.text


def test_fields_of_a_transcript_reach_the_transcriber(
    transcriber: RunningGateway, wav: bytes
) -> None:
    with openai(transcriber) as client:
        more = {"keywords": ["Qwen", "vLLM"], "max_completion_tokens": 9}
        verbose = client.audio.transcriptions.create(
            model=MODEL,
            file=wav,
            language="en",
            prompt="Yes.",
            temperature=0.5,
            response_format="verbose_json",
            extra_body=more,
        )
        assert verbose.language == "en"
        assert verbose.segments is not None
        assert verbose.segments[0].avg_logprob == -0.5
        assert asked_of(transcriber) == Transcribe("en", "Qwen, vLLM Yes.", False, 0.5, 9, True)
    url = f"{transcriber.url}/v1/audio/translations"
    assert httpx.post(url, data={"prompt": "Oui."}, files={"file": wav}).is_success
    assert asked_of(transcriber) == Transcribe(None, "Oui.", True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"languages": ["en", "de"]}, "languages"), ({"prompt": "refuse"}, "file")],
)
def test_what_a_transcriber_cannot_do_is_refused(
    fields: Json, param: str, transcriber: RunningGateway, wav: bytes
) -> None:
    with openai(transcriber) as client, pytest.raises(BadRequestError) as caught:
        client.audio.transcriptions.create(model=MODEL, file=wav, extra_body=fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("completions", {"prompt": "Hi"}),
        ("responses", {"input": "Hi"}),
        ("audio/speech", {"input": "Hi"}),
        ("embeddings", {"input": "Hi"}),
    ],
)
def test_a_transcriber_alone_refuses_everything_else(
    path: str, body: Json, transcriber: RunningGateway
) -> None:
    answer = httpx.post(f"{transcriber.url}/v1/{path}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "unsupported_model"
    if path != "audio/speech":
        assert "use /v1/audio/transcriptions" in error["message"]


def test_a_session_of_transcripts_needs_the_transcriber_alone(
    transcriber: RunningGateway,
) -> None:
    with talking(transcriber, "?intent=transcription") as talk:
        speak(talk)
        done = talk.until("conversation.item.input_audio_transcription.completed")
        assert done["transcript"].startswith("I speak for")
        talk.order.end()
    answer = httpx.get(
        f"{transcriber.url}/v1/realtime",
        headers={"connection": "upgrade", "upgrade": "websocket", **HANDSHAKE},
    )
    assert answer.status_code == 400
    assert "makes no text" in answer.json()["error"]["message"]


HANDSHAKE = {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}


def test_a_chat_of_a_cascade_is_its_text_models(gateway: RunningGateway) -> None:
    with openai(gateway) as client:
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
        assert chat.choices[0].message.content == TEXT
        asked = gateway.stages.stages["thinker"].last_request
        assert (asked.outputs, asked.path) == (["text"], ["thinker"])
        for modalities in (["audio"], ["text", "audio"]):
            with pytest.raises(BadRequestError) as caught:
                client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "Hi"}],
                    modalities=modalities,  # type: ignore[arg-type]
                )
            assert caught.value.param == "modalities"
            assert "asks for audio; this model makes text" in str(caught.value)
        (card,) = client.models.list().data
        assert card.model_extra is not None
        assert card.model_extra["output_modalities"] == ["transcript", "text", "audio"]
        assert card.model_extra["chat_modalities"] == ["text"]


def test_a_given_text_of_a_cascade_is_its_speech_models(gateway: RunningGateway) -> None:
    with openai(gateway) as client:
        speech = client.audio.speech.create(
            model=MODEL, input="Hi", voice="ethan", response_format="pcm"
        )
        assert len(speech.content) > 0
        asked = gateway.stages.stages["talker"].last_request
        assert (asked.outputs, asked.path) == (["audio"], ["talker", "code2wav"])
