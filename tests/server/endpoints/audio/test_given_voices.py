"""Voices of a sound that comes with a text."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.bodies import given_text
from support.gateway.cloning import CLONING, SAMPLES, SPEECH, WAV, asked, last_opened, sound_of
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.media.sounds import data_url, tone, wav_of


def test_a_sound_comes_with_the_text(asking: httpx.Client, cloning: RunningGateway) -> None:
    more: dict[str, Any] = {"ref_audio": data_url(WAV), "ref_text": "said", "language": "en"}
    more |= {"voice": "default", "task_type": "Base", "x_vector_only_mode": False}
    response = asking.post(SPEECH, json=asked(**more))
    assert response.status_code == 200, response.text
    assert "x-omnistage-warning" not in response.headers
    samples, text = sound_of(cloning)
    assert np.array_equal(samples, SAMPLES)
    assert text == "said"
    request = last_opened(cloning).message
    assert request.speaker is None
    assert given_text(request).language == "English"


def test_a_sound_may_be_a_file_below_the_allowed_folder(
    asking: httpx.Client, cloning: RunningGateway, folder: Path
) -> None:
    response = asking.post(SPEECH, json=asked(ref_audio=f"file://{folder}/voice.wav"))
    assert response.status_code == 200, response.text
    samples, text = sound_of(cloning)
    assert np.array_equal(samples, SAMPLES)
    assert text is None


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({}, "voice"),
        ({"voice": "ethan"}, "voice"),
        ({"ref_audio": 3}, "ref_audio"),
        ({"ref_audio": "voice.wav"}, "ref_audio"),
        ({"ref_audio": "data:audio/wav;base64,!"}, "ref_audio"),
        ({"ref_audio": "data:audio/wav;base64,"}, "ref_audio"),
        ({"ref_audio": data_url(b"no sound")}, "ref_audio"),
        ({"ref_audio": data_url(wav_of(tone(0.2)))}, "ref_audio"),
        ({"ref_audio": "http://127.0.0.1:9/voice.wav"}, "ref_audio"),
        ({"ref_audio": "file:///etc/passwd"}, "ref_audio"),
        ({"ref_audio": data_url(WAV), "voice": "ethan"}, "ref_audio"),
        ({"ref_audio": data_url(WAV), "ref_text": ""}, "ref_text"),
        ({"ref_text": "said"}, "ref_text"),
        ({"ref_audio": data_url(WAV), "language": "Klingon"}, "language"),
        ({"ref_audio": data_url(WAV), "task_type": "CustomVoice"}, "task_type"),
        ({"ref_audio": data_url(WAV), "task_type": "Other"}, "task_type"),
        ({"ref_audio": data_url(WAV), "speaker_embedding": [1.0]}, "speaker_embedding"),
    ],
)
def test_what_cannot_be_spoken_with_is_refused_before_a_stage_gets_it(
    more: dict[str, Any], param: str, asking: httpx.Client, cloning: RunningGateway
) -> None:
    before = len(cloning.stages.stages["thinker"].opened)
    response = asking.post(SPEECH, json=asked(**more))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert len(cloning.stages.stages["thinker"].opened) == before
    assert cloning.do(lambda: not cloning.stages.running)


ONE_READ = httpx.Timeout(60, read=1.5)


def test_sounds_in_use_share_the_room_of_media(tmp_path: Path) -> None:
    """Of two that do not fit together the second waits until the first has been spoken with."""
    long = data_url(wav_of(tone(40, 8_000), 8_000))  # 3.7 MiB, as the stages get it
    room: Any = {"speech": CLONING, "speakers": [], "decode_bytes": 5 << 20, "arena_mb": 16}
    with (
        running_gateway(tmp_path, OMNI, **room) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600) as client,
    ):
        with client.stream("POST", SPEECH, json=asked(input="endless", ref_audio=long)) as first:
            sounding = first.iter_bytes()
            next(sounding)
            with pytest.raises(httpx.ReadTimeout):
                client.post(SPEECH, json=asked(ref_audio=long), timeout=ONE_READ)
        assert client.post(SPEECH, json=asked(ref_audio=long)).status_code == 200
