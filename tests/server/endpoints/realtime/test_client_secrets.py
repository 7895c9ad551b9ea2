"""Client secrets: what is asked for, as the specification has it, and what is refused."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from support.api.openai_spec import assert_valid
from support.gateway.serving import MODEL, OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.realtime.client_secrets import BETA, KEY, SECRETS, Json, opened, posted
from support.realtime.order import bare

from omnistage.server.http.access.keys import Keys
from omnistage.server.options.bounds import SessionBounds


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with keys, of which each may have two sessions."""
    folder = tmp_path_factory.mktemp("guarded")
    keys, bounds = Keys([KEY, "sk-bob"]), SessionBounds(max_of_key=2)
    with running_gateway(folder, OMNI, keys=keys, sessions=bounds) as gateway:
        yield gateway


def test_a_secret_is_as_the_specification_has_it(guarded: RunningGateway) -> None:
    session = {"type": "realtime", "model": MODEL, "instructions": "Be brief."}
    before = int(time.time())
    answer = posted(guarded, session=session).json()
    assert_valid(bare(answer), "RealtimeCreateClientSecretResponse", "realtime")
    assert answer["value"].startswith("ek_")
    assert before + 600 <= answer["expires_at"] <= time.time() + 600
    assert answer["session"]["instructions"] == "Be brief."
    assert answer["session"]["audio"]["output"]["voice"] == "alloy"


@pytest.mark.parametrize("body", [{}, {"session": None, "expires_after": None}])
def test_everything_may_be_left_out(guarded: RunningGateway, body: Json) -> None:
    answer = posted(guarded, **body).json()
    assert answer["session"]["type"] == "realtime"
    with opened(guarded, answer["value"]) as talk:
        assert talk.answer()["status"] == "completed"


def test_the_sdk_makes_one(guarded: RunningGateway) -> None:
    with OpenAI(base_url=f"{guarded.url}/v1", api_key=KEY) as openai:
        made = openai.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60}, session={"type": "realtime"}
        )
    assert made.value.startswith("ek_")
    assert made.expires_at <= time.time() + 60
    assert made.session.type == "realtime"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": "soon"}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "used_at"}}, "expires_after.anchor"),
        ({"expires_after": 600}, "expires_after"),
        ({"session": "realtime"}, "session"),
        ({"session": {"type": "other"}}, "session.type"),
        ({"session": {"type": "realtime", "model": "other"}}, "model"),
        ({"session": {"audio": {"output": {"speed": 9}}}}, "session.audio.output.speed"),
        ({"session": {"audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice"),
        ({"session": {"tools": [{"type": "mcp"}]}}, "session.tools[0].type"),
        ({"session": {"type": "transcription", "audio": {"input": {"format": 5}}}}, None),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(
    guarded: RunningGateway, body: Json, param: str | None
) -> None:
    answer = posted(guarded, **body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == (param or "session.audio.input.format")


def test_a_graph_without_text_has_no_sessions(images: RunningGateway) -> None:
    for path in (SECRETS, *BETA):
        answer = httpx.post(images.url + path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_model")


def test_a_model_without_speech_answers_in_text(tmp_path: Path) -> None:
    with running_gateway(tmp_path, TEXT_ONLY) as gateway:
        answer = httpx.post(gateway.url + SECRETS, json={})
        assert answer.json()["session"]["output_modalities"] == ["text"]
        audio = {"session": {"type": "realtime", "output_modalities": ["audio"]}}
        assert httpx.post(gateway.url + SECRETS, json=audio).status_code == 400


def test_a_beta_session_is_flat_with_its_secret(guarded: RunningGateway) -> None:
    answer = posted(guarded, BETA[0], voice="marin", input_audio_format="g711_ulaw").json()
    assert_valid(bare(answer), "RealtimeSessionCreateResponse", "realtime")
    assert answer["object"] == "realtime.session"
    assert (answer["voice"], answer["input_audio_format"]) == ("marin", "g711_ulaw")
    assert answer["client_secret"]["expires_at"] <= time.time() + 60
    with opened(guarded, answer["client_secret"]["value"]) as talk:
        audio = talk.events[0]["session"]["audio"]
        assert audio["input"]["format"] == {"type": "audio/pcmu"}
        assert audio["output"]["voice"] == "marin"


def test_a_beta_transcription_session_is_flat_with_its_secret(guarded: RunningGateway) -> None:
    chosen = {"model": "gpt-4o-transcribe", "language": "de"}
    more: Json = {"client_secret": {"expires_after": {"seconds": 30}}}
    answer = posted(guarded, BETA[1], input_audio_transcription=chosen, **more).json()
    assert_valid(bare(answer), "RealtimeTranscriptionSessionCreateResponse", "realtime")
    assert answer["object"] == "realtime.transcription_session"
    assert answer["input_audio_transcription"] == chosen
    assert answer["client_secret"]["expires_at"] <= time.time() + 30
    for query in ("", "?intent=transcription"):
        with opened(guarded, answer["client_secret"]["value"], query) as talk:
            told = talk.events[0]["session"]
            assert told["type"] == "transcription"
            assert told["audio"]["input"]["transcription"]["language"] == "de"


@pytest.mark.parametrize("path", BETA)
def test_a_wrong_field_of_the_beta_is_refused(guarded: RunningGateway, path: str) -> None:
    answer = posted(guarded, path, input_audio_format="mp3")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "audio.input.format"
    assert posted(guarded, path, client_secret={"expires_after": {"seconds": 1}}).status_code == 400
