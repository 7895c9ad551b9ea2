"""Voices made from a sound: stored, told of, spoken with, deleted; sounds that come with a text."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError
from support.api.openai_answers import strict_client
from support.api.openai_spec import assert_valid
from support.gateway.cloning import (
    CLONING,
    CONSENT,
    SAMPLES,
    SPEECH,
    URL,
    WAV,
    asked,
    post,
    sound_of,
)
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.media.sounds import tone, wav_of

from omnistage.server.http.access.keys import Keys
from omnistage.server.tasks.speech.voice_fields import VoiceRequest


def stored(client: httpx.Client, name: str = "Mine", **fields: Any) -> dict[str, Any]:
    response = post(client, name=name, **fields)
    assert response.status_code == 200, response.text
    voice: dict[str, Any] = response.json()
    return voice


def test_the_sdk_stores_a_voice_and_speaks_with_it(cloning: RunningGateway) -> None:
    with strict_client(cloning.url) as openai:
        voice = openai.audio.voices.create(name="Ann", audio_sample=WAV, consent=CONSENT)
        assert (voice.object, voice.name) == ("audio.voice", "Ann")
        answer = openai.audio.speech.create(model=MODEL, input="words", voice={"id": voice.id})
        assert answer.read()
        samples, text = sound_of(cloning)
        assert np.array_equal(samples, SAMPLES)
        assert text is None
        with pytest.raises(BadRequestError) as raised:
            openai.audio.voices.create(name="Ann", audio_sample=WAV, consent=CONSENT)
        assert raised.value.param == "name"
        deleted = openai.audio.voices.delete(voice.id)
        assert (deleted.id, deleted.deleted) == (voice.id, True)
        with pytest.raises(BadRequestError) as raised:
            openai.audio.speech.create(model=MODEL, input="words", voice={"id": voice.id})
        assert raised.value.param == "voice"


def test_a_voice_is_told_of_and_listed_with_its_consent(asking: httpx.Client) -> None:
    voice = stored(asking, ref_text="What is said.")
    assert voice["type"] == "audio_sample"  # of OpenAI's SDK, and not yet of its specification
    assert_valid({k: v for k, v in voice.items() if k != "type"}, "VoiceResource", "audio")
    assert asking.get(f"{URL}/{voice['id']}").json() == voice
    told = asking.get(URL).json()
    assert told["voices"] == [{"id": voice["id"], "name": "Mine"}]
    assert told["names"] == ["Mine"]
    more = {"consent": CONSENT, "ref_text": "What is said.", "seconds": 1.0}
    assert told["uploaded_voices"] == [{**voice, **more}]
    assert asking.get(URL, params={"format": "vllm"}).json()["voices"] == ["Mine"]


def test_fields_that_are_sent_empty_are_not_given(asking: httpx.Client) -> None:
    required = {"name", "consent", "audio_sample"}
    optional = dict.fromkeys(VoiceRequest.model_fields.keys() - required, "")
    voice = stored(asking, **optional, prompt="", speaker_embedding="", zork="")
    (told,) = asking.get(URL).json()["uploaded_voices"]
    assert (told["id"], told["ref_text"]) == (voice["id"], None)


def test_a_sound_without_a_filename_is_refused_as_no_file(asking: httpx.Client) -> None:
    response = post(asking, sample=None, audio_sample=WAV)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "audio_sample")
    assert 'filename="' in error["message"]


def test_a_voice_that_is_not_there_is_a_404(asking: httpx.Client) -> None:
    for method in ("GET", "DELETE"):
        response = asking.request(method, f"{URL}/voice_0")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "voice_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sample": None}, "audio_sample"),
        ({"sample": b""}, "audio_sample"),
        ({"sample": b"no sound"}, "audio_sample"),
        ({"sample": wav_of(tone(0.2))}, "audio_sample"),
        ({"sample": bytes((10 << 20) + 1)}, "audio_sample"),
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": " x"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"consent": None}, "consent"),
        ({"consent": ""}, "consent"),
        ({"ref_text": " \u200b"}, "ref_text"),
        ({"ref_text": "x" * 4097}, "ref_text"),
        ({"type": "prompt"}, "type"),
        ({"prompt": "A deep voice."}, "prompt"),
        ({"speaker_embedding": "[1]"}, "speaker_embedding"),
    ],
)
def test_what_is_no_voice_is_refused_by_its_field(
    fields: dict[str, Any], param: str, asking: httpx.Client
) -> None:
    response = post(asking, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert asking.get(URL).json()["uploaded_voices"] == []


def test_an_unknown_field_is_warned_of(asking: httpx.Client) -> None:
    response = post(asking, speaker_description="x")
    said = "unknown fields without effect: speaker_description"
    assert response.headers["x-omnistage-warning"] == said


def test_a_folder_keeps_voices_over_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    folder.mkdir()
    options: Any = {"speech": CLONING, "speakers": [], "voices_path": folder}
    for number in range(2):
        run = tmp_path / str(number)
        run.mkdir()
        with (
            running_gateway(run, OMNI, **options) as gateway,
            httpx.Client(base_url=gateway.url, timeout=600) as client,
        ):
            if number == 0:
                voice = stored(client, ref_text="said")
            assert client.get(f"{URL}/{voice['id']}").json() == voice
            assert client.post(SPEECH, json=asked(voice="mine")).status_code == 200
            samples, text = sound_of(gateway)
            assert np.array_equal(samples, SAMPLES)
            assert text == "said"


def test_a_voice_that_is_deleted_is_spoken_with_to_the_end(
    asking: httpx.Client, cloning: RunningGateway
) -> None:
    voice = stored(asking)
    stages = cloning.stages.stages
    before = len(stages["thinker"].opened)
    body = asked(input="endless. Then this is the rest.", voice=voice["id"])
    with asking.stream("POST", SPEECH, json=body) as response:
        sounding = response.iter_bytes()
        next(sounding)
        assert httpx.delete(f"{cloning.url}{URL}/{voice['id']}").status_code == 200
        for _ in sounding:
            if len(stages["thinker"].opened) == before + 2:
                break
        assert np.array_equal(sound_of(cloning)[0], SAMPLES)
    cloning.wait_until_idle()


def test_a_model_that_takes_no_sound_stores_none_and_a_chat_speaks_with_none(
    client: httpx.Client,
) -> None:
    response = post(client)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_model"
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": {"id": "voice_0"}}}
    chat = {"messages": [{"role": "user", "content": "words"}], **spoken}
    response = client.post("/v1/chat/completions", json=chat)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "audio.voice"


def test_stored_voices_are_for_those_with_a_key(tmp_path: Path) -> None:
    options: Any = {"speech": CLONING, "keys": Keys(["sk-ann"])}
    with (
        running_gateway(tmp_path, OMNI, **options) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as stranger,
        httpx.Client(
            base_url=gateway.url, timeout=600, headers={"authorization": "Bearer sk-ann"}
        ) as ann,
    ):
        assert post(stranger).status_code == 401
        voice = stored(ann)
        for method in ("GET", "DELETE"):
            assert stranger.request(method, f"{URL}/{voice['id']}").status_code == 401
        told = stranger.get(URL).json()
        assert told["uploaded_voices"] == []
        assert "Mine" not in told["names"]
        wrong = {"authorization": "Bearer sk-bob"}
        assert stranger.get(URL, headers=wrong).json() == told
        assert "Mine" in ann.get(URL).json()["names"]
        assert post(ann, name="CHELSIE").json()["error"]["param"] == "name"


def test_while_the_stage_loads_nothing_is_stored(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, loading=frozenset({"thinker"})) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        for response in (post(client), client.post(SPEECH, json=asked(ref_audio="x"))):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "loading"
