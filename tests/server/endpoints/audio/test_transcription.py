"""Transcripts and translations as OpenAI's client reads them, whole and streamed; refusals."""

import base64
import io
import wave
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from openai import BadRequestError, OpenAI
from openai.types.audio import TranscriptionVerbose, TranslationVerbose
from support.fake_stages import WORDS
from support.gateway import MODEL, OMNI, RunningGateway, running_gateway
from support.hanging_up import hang_up
from support.openai_spec import assert_valid

from omnistage.server.tasks.transcripts.transcription_fields import (
    AudioRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from omnistage.stages.messages.to_stage import MediumPiece

URL, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
TEXT = "".join(WORDS)
NUM_TOKENS = len(WORDS) + 1  # the fake's role comes with a token, the last one ends the text
MARKER = "before it: "


def wav_bytes(seconds: float = 0.5) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * int(16_000 * seconds)))
    return buffer.getvalue()


WAV = wav_bytes()


def post(client: httpx.Client, url: str = URL, file: Any = WAV, **fields: Any) -> httpx.Response:
    return client.post(url, data=fields, files={"file": ("upload", file)})


def last_body(gateway: RunningGateway) -> Any:
    return gateway.stages.stages["thinker"].last_body


def instruction(gateway: RunningGateway) -> str:
    """The words beside the sound, which is silence of half a second at the model's rate."""
    (turn,) = last_body(gateway)["messages"]
    sound, told = turn["content"]
    *_, piece, _ = gateway.stages.stages["thinker"].seen
    assert isinstance(piece.message, MediumPiece)
    assert piece.message.name == sound["audio_url"]["url"]
    assert piece.tensors["data"].numpy().tolist() == [0.0] * 8_000
    return str(told["text"])


def test_a_transcript(openai: OpenAI, client: httpx.Client, gateway: RunningGateway) -> None:
    answer = openai.audio.transcriptions.create(model=MODEL, file=WAV)
    assert answer.text == TEXT
    assert answer.usage is not None
    assert answer.usage.type == "tokens"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 3)
    assert last_body(gateway)["temperature"] == 0
    told = instruction(gateway)
    assert told == "Transcribe the audio into text, word for word. Answer with the text only."
    assert_valid(post(client).json(), "CreateTranscriptionResponseJson", "audio")


def test_every_field_reaches_the_model(openai: OpenAI, gateway: RunningGateway) -> None:
    openai.audio.transcriptions.create(
        model=MODEL,
        file=("talk.mp3", WAV),
        language="de",
        prompt="Dr. Müller",
        temperature=0.5,
        chunking_strategy="auto",
        keywords=["fox", "hound"],
        languages=["de", "en"],
        extra_body={"max_completion_tokens": 7},
    )
    told = instruction(gateway)
    for words in ("is de.", "one of: de, en.", "said: fox, hound.", f"{MARKER}Dr. Müller"):
        assert words in told
    body = last_body(gateway)
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 7)


def test_plain_text(openai: OpenAI, client: httpx.Client) -> None:
    answer: Any = openai.audio.transcriptions.create(model=MODEL, file=WAV, response_format="text")
    assert answer == TEXT
    response = post(client, response_format="text")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_verbose_transcript_has_one_segment(openai: OpenAI, client: httpx.Client) -> None:
    answer = openai.audio.transcriptions.create(
        model=MODEL,
        file=WAV,
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert isinstance(answer, TranscriptionVerbose)
    assert (answer.text, answer.language, answer.duration) == (TEXT, "en", 0.5)
    assert answer.segments is not None
    (segment,) = answer.segments
    assert (segment.start, segment.end, segment.text) == (0.0, 0.5, TEXT)
    assert segment.avg_logprob == -0.5
    assert len(segment.tokens) == NUM_TOKENS
    told = post(client, response_format="verbose_json").json()
    assert told["language"] == "unknown"
    assert_valid(told, "CreateTranscriptionResponseVerboseJson", "audio")


def test_a_verbose_transcript_of_silence_has_no_segment(client: httpx.Client) -> None:
    told = post(client, response_format="verbose_json", prompt="silent").json()
    assert (told["text"], told["segments"]) == ("", [])


def test_a_verbose_transcript_decodes_its_sound_once(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_media = av.open

    def count(*args: Any, **options: Any) -> Any:
        opened.append(args)
        return open_media(*args, **options)

    monkeypatch.setattr(av, "open", count)
    assert post(client, response_format="verbose_json").json()["duration"] == 0.5
    assert len(opened) == 1


def test_log_probabilities(openai: OpenAI) -> None:
    answer = openai.audio.transcriptions.create(model=MODEL, file=WAV, include=["logprobs"])
    assert [entry.token for entry in answer.logprobs or ()] == WORDS
    events = list(
        openai.audio.transcriptions.create(model=MODEL, file=WAV, include=["logprobs"], stream=True)
    )
    entries = [entry.token for event in events[:-1] for entry in getattr(event, "logprobs", ())]
    assert entries == WORDS


def test_a_streamed_transcript(openai: OpenAI, client: httpx.Client) -> None:
    events = list(openai.audio.transcriptions.create(model=MODEL, file=WAV, stream=True))
    *deltas, done = events
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == TEXT
    assert done.type == "transcript.text.done"
    assert done.text == TEXT
    assert done.usage is not None
    assert done.usage.type == "tokens"
    for event in events:
        told = event.model_dump(exclude_unset=True)
        assert_valid(told, "CreateTranscriptionResponseStreamEvent", "audio")
    assert "[DONE]" not in post(client, stream="true").text


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_a_translation(openai: OpenAI, client: httpx.Client, gateway: RunningGateway) -> None:
    assert openai.audio.translations.create(model=MODEL, file=WAV).text == TEXT
    assert instruction(gateway).startswith("Translate the speech in the audio into English.")
    verbose: Any = openai.audio.translations.create(
        model=MODEL, file=WAV, response_format="verbose_json", prompt="As Poe."
    )
    assert isinstance(verbose, TranslationVerbose)
    assert (verbose.language, verbose.duration) == ("english", 0.5)
    assert instruction(gateway).endswith(f"{MARKER}As Poe.")
    told = post(client, TRANSLATIONS).json()
    assert_valid(told, "CreateTranslationResponseJson", "audio")
    told = post(client, TRANSLATIONS, response_format="verbose_json").json()
    assert_valid(told, "CreateTranslationResponseVerboseJson", "audio")


@pytest.mark.parametrize("head", ["", "data:;base64,", "data:audio/wav;base64,"])
def test_json_with_the_sound_in_it(
    head: str, client: httpx.Client, gateway: RunningGateway
) -> None:
    sound = {"data": head + base64.b64encode(WAV).decode(), "format": "wav"}
    body = {"model": MODEL, "input_audio": sound, "language": "en"}
    assert client.post(URL, json=body).json()["text"] == TEXT
    assert "is en." in instruction(gateway)
    wrong_data = ({"data": head + "?", "format": "wav"}, {"data": "data:,x"})
    for wrong in (*wrong_data, {"format": "wav"}, "x"):
        refused = client.post(URL, json={"model": MODEL, "input_audio": wrong})
        assert refused.json()["error"]["param"] == "input_audio.data"
    elsewhere = {"data": "https://a.b/c.wav", "format": "wav"}
    refused = client.post(URL, json={"model": MODEL, "input_audio": elsewhere})
    assert "not the URL of a file: send the file itself" in refused.json()["error"]["message"]


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
