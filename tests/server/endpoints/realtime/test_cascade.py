"""A transcriber, a text model and a speech model that no edge joins: each alone, and a session."""

import base64
import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from support.cascade import CASCADE, SPEECH, TRANSCRIBER
from support.fake_stages import SAMPLES_PER_FRAME, WORDS
from support.gateway import MODEL, RunningGateway, running_gateway
from support.realtime import Talk, silence, talking, tone
from support.waiting import wait_until

from omnistage.stages.messages.body import GivenText, Transcribe
from omnistage.stages.messages.to_gateway import Speech

Json = dict[str, Any]
TEXT = "".join(WORDS)
DELTA = "response.output_audio.delta"

pytestmark = pytest.mark.usefixtures("by_loudness")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("cascade"), CASCADE, speech=SPEECH) as running:
        yield running


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
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


@pytest.fixture
def talk(gateway: RunningGateway) -> Iterator[Talk]:
    with talking(gateway) as talk:
        yield talk
        talk.order.end()


def openai(gateway: RunningGateway) -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def asked_of(gateway: RunningGateway) -> Transcribe:
    """The last body that the transcriber got."""
    body = gateway.stages.stages["transcriber"].last_request.body
    assert isinstance(body, Transcribe)
    return body


def speak(talk: Talk, seconds: float = 0.5, quiet: float = 0.8) -> None:
    sound = np.concatenate([tone(seconds), silence(quiet)])
    for piece in np.split(sound, range(480, len(sound), 480)):
        talk.append(piece)


# Each by itself


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


# A session


def test_a_turn_is_transcribed_answered_and_spoken(gateway: RunningGateway, talk: Talk) -> None:
    talk.update(
        instructions="Be short.",
        audio={
            "input": {"transcription": {"model": "whisper-1", "language": "en"}},
            "output": {"voice": "chelsie"},
        },
    )
    speak(talk)
    response = talk.until("response.done")["response"]
    assert response["status"] == "completed"
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": TEXT}]
    assert talk.told("response.output_audio.delta")
    (heard,) = talk.told("conversation.item.input_audio_transcription.completed")
    assert heard["transcript"].startswith("I speak for")
    assert asked_of(gateway).language == "en"
    stages = gateway.stages.stages
    assert stages["thinker"].last_body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": heard["transcript"]}]},
    ]
    spoken = stages["talker"].last_request
    assert (spoken.speaker, spoken.path) == ("chelsie", ["talker", "code2wav"])
    assert isinstance(spoken.body, GivenText)
    words = [spoken.body.text, *gateway.stages.texts[stages["talker"].opened[-1].request_id]]
    assert "".join(words) == TEXT
    assert response["usage"]["output_token_details"]["audio_tokens"] > 0
    kinds = talk.kinds
    told = kinds.index("conversation.item.input_audio_transcription.completed")
    assert told < kinds.index("response.output_item.added")  # the answer is to these words


def test_a_turn_is_transcribed_once_and_only_told_of_if_asked(
    gateway: RunningGateway, talk: Talk
) -> None:
    before = len(gateway.stages.stages["transcriber"].opened)
    speak(talk)
    assert talk.until("response.done")["response"]["status"] == "completed"
    assert not [kind for kind in talk.kinds if "transcription" in kind]
    speak(talk)
    talk.until("response.done")
    assert len(gateway.stages.stages["transcriber"].opened) == before + 2
    user = gateway.stages.stages["thinker"].last_body["messages"]
    assert [one["role"] for one in user] == ["user", "assistant", "user"]


def test_the_text_model_never_gets_audio(gateway: RunningGateway, talk: Talk) -> None:
    """Neither for an answer nor ahead of one, when the history has changed."""
    thinker = gateway.stages.stages["thinker"]
    speak(talk)
    talk.until("response.done")
    before = len(thinker.opened)
    talk.update(instructions="Be kind.")
    assert talk.is_quiet(0.3)
    assert len(thinker.opened) == before
    for chunk in thinker.opened:
        assert "audio" not in str(chunk.message.fields["messages"])


def test_audio_of_an_item_and_out_of_band_is_answered_in_words(
    gateway: RunningGateway, talk: Talk
) -> None:
    audio = base64.b64encode(tone(0.5).astype("<i2").tobytes()).decode()
    content = [{"type": "input_audio", "audio": audio}]
    given = {"type": "message", "role": "user", "content": content}
    talk.say("conversation.item.create", item=given)
    talk.until("conversation.item.done")
    assert talk.answer()["status"] == "completed"
    thinker = gateway.stages.stages["thinker"]
    said = [{"type": "text", "text": "I speak for 0.5 s"}]
    assert thinker.last_body["messages"][0]["content"] == said
    content[0]["transcript"] = "I said so."
    talk.answer(conversation="none", input=[given])
    said = [{"type": "text", "text": "I said so."}]
    assert thinker.last_body["messages"] == [{"role": "user", "content": said}]


def test_a_call_of_a_function_is_not_spoken(gateway: RunningGateway, talk: Talk) -> None:
    num_spoken = len(gateway.stages.stages["talker"].opened)
    talk.write("tool")
    response = talk.answer()
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("function_call", "look")
    assert len(gateway.stages.stages["talker"].opened) == num_spoken


@pytest.mark.parametrize(
    ("max_text", "parts"),
    [
        (400, ["Hello there"]),
        (12, ["Hello there"]),
        (8, ["Hello", " there"]),
        (6, ["Hello", " there"]),
    ],
)
def test_a_long_answer_is_spoken_in_parts_that_the_model_takes(
    max_text: int, parts: list[str], tmp_path: Path
) -> None:
    speech = Speech(takes_pieces=True, max_text=max_text)
    with running_gateway(tmp_path, CASCADE, speech=speech) as gateway, talking(gateway) as talk:
        talk.write("Hi")
        response = talk.answer()
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["transcript"] == TEXT
        opened = gateway.stages.stages["talker"].opened
        words = [chunk.message.body.text for chunk in opened]  # type: ignore[union-attr]
        rest = ["".join(gateway.stages.texts[chunk.request_id]) for chunk in opened]
        assert [one + more for one, more in zip(words, rest, strict=True)] == parts
        pcm = b"".join(base64.b64decode(one["delta"]) for one in talk.told(DELTA))
        frames = response["usage"]["output_token_details"]["audio_tokens"]
        assert len(pcm) == 2 * SAMPLES_PER_FRAME * frames > 0
        gateway.wait_until_idle()


def test_an_answer_in_text_is_not_spoken(gateway: RunningGateway, talk: Talk) -> None:
    num_spoken = len(gateway.stages.stages["talker"].opened)
    talk.update(output_modalities=["text"])
    talk.write("Hi")
    (item,) = talk.answer()["output"]
    assert item["content"] == [{"type": "output_text", "text": TEXT}]
    assert len(gateway.stages.stages["talker"].opened) == num_spoken


@pytest.mark.parametrize("stage", ["transcriber", "thinker", "code2wav"])
def test_speaking_into_an_answer_ends_all_of_its_requests(
    stage: str, gateway: RunningGateway, talk: Talk
) -> None:
    """Wherever the answer is: it hangs in the transcriber, in the text or in the speech."""
    if stage == "transcriber":
        talk.update(audio={"input": {"transcription": {"model": "x", "prompt": "hang"}}})
        speak(talk)
        talk.until("response.created")
    else:
        talk.write({"thinker": "hang", "code2wav": "pause"}[stage])
        talk.say("response.create")
        talk.until("response.created" if stage == "thinker" else "response.output_audio.delta")
    wait_until(lambda: gateway.do(lambda: bool(gateway.stages.stages[stage].tasks)))
    for piece in np.split(tone(0.5), 25):
        talk.append(piece)
    talk.until("input_audio_buffer.speech_started")
    done = talk.until("response.done")["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"]["reason"] == "turn_detected"
    after = talk.kinds[talk.kinds.index("input_audio_buffer.speech_started", 1) :]
    assert stage == "transcriber" or not [kind for kind in after if kind.endswith(".delta")]
    if stage != "transcriber":  # a transcript of what was said is made whatever follows
        gateway.wait_until_idle()
    talk.say("input_audio_buffer.clear")
    talk.until("input_audio_buffer.cleared")


def test_a_transcript_that_fails_fails_the_answer_and_the_session_goes_on(
    gateway: RunningGateway, talk: Talk
) -> None:
    talk.update(audio={"input": {"transcription": {"model": "x", "prompt": "refuse"}}})
    speak(talk)
    response = talk.until("response.done")["response"]
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "context_length_exceeded"
    assert talk.told("conversation.item.input_audio_transcription.failed")
    talk.update(audio={"input": {"transcription": None}})
    assert talk.answer()["status"] == "completed"  # it is transcribed again


def test_a_voice_that_the_speech_model_has_not_is_refused_by_its_field(talk: Talk) -> None:
    talk.say("session.update", session={"type": "realtime", "audio": {"output": {"voice": "me"}}})
    error = talk.until("error")["error"]
    assert error["param"] == "session.audio.output.voice"
    assert "chelsie" in error["message"]
