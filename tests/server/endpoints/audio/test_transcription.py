"""Transcripts and translations as OpenAI's client reads them, whole and streamed."""

import base64
from typing import Any

import av
import httpx
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionVerbose, TranslationVerbose
from support.api.openai_spec import assert_valid
from support.fakes.stages import WORDS
from support.gateway.serving import MODEL, RunningGateway
from support.gateway.transcripts import TRANSLATIONS, URL, WAV, instruction, last_body, post

TEXT = "".join(WORDS)
NUM_TOKENS = len(WORDS) + 1  # the fake's role comes with a token, the last one ends the text
MARKER = "before it: "


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
    answer = client.post(URL, json=body)
    assert answer.json()["text"] == TEXT
    assert "x-omnistage-warning" not in answer.headers
    assert "is en." in instruction(gateway)
    wrong_data = ({"data": head + "?", "format": "wav"}, {"data": "data:,x"})
    for wrong in (*wrong_data, {"format": "wav"}, "x"):
        refused = client.post(URL, json={"model": MODEL, "input_audio": wrong})
        assert refused.json()["error"]["param"] == "input_audio.data"
    elsewhere = {"data": "https://a.b/c.wav", "format": "wav"}
    refused = client.post(URL, json={"model": MODEL, "input_audio": elsewhere})
    assert "not the URL of a file: send the file itself" in refused.json()["error"]["message"]
