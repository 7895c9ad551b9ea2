"""Audio of a conversation is resampled for the first answer that hears it, and kept for others."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.realtime.client import Talk, silence, talking, tone
from support.waiting import wait_until

from omnistage.server.media.sound import RawAudio, SoundTrack
from omnistage.server.options.bounds import SessionBounds
from omnistage.server.realtime.voice.formats import FormatName, Samples, decoded, encoded

pytestmark = pytest.mark.usefixtures("by_loudness")

BY_HAND = {"audio": {"input": {"turn_detection": None}}}


@pytest.fixture
def resampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each sound is that is resampled, in samples."""
    lengths: list[int] = []
    frames = RawAudio.frames

    def counted(sound: RawAudio) -> Iterator[object]:
        lengths.append(len(sound.samples))
        return frames(sound)

    monkeypatch.setattr(RawAudio, "frames", counted)
    return lengths


def say(talk: Talk, sound: Samples, form: FormatName = "audio/pcm") -> None:
    audio = base64.b64encode(encoded(sound, form)).decode()
    talk.say("input_audio_buffer.append", audio=audio)
    talk.say("input_audio_buffer.commit")
    talk.until("conversation.item.done")
    assert talk.answer()["status"] == "completed"


def heard(gateway: RunningGateway) -> list[Samples]:
    """The sounds that the thinker got with its last request."""
    thinker = gateway.stages.stages["thinker"]
    request_id = thinker.opened[-1].request_id
    chunks = [one for one in thinker.seen if one.request_id == request_id and one.tensors]
    return [np.array(one.tensors["data"].numpy()) for one in chunks]


@pytest.mark.parametrize("form", ["audio/pcm", "audio/pcmu"])
def test_an_answer_resamples_what_is_new_alone(
    form: FormatName, tmp_path: Path, resampled: list[int]
) -> None:
    rate_hz = 24_000 if form == "audio/pcm" else 8_000
    sounds = [tone(seconds, rate_hz) for seconds in (0.5, 0.6, 0.7)]
    kept = SessionBounds(answer_ahead=0, history_ahead=0)
    with running_gateway(tmp_path, OMNI, sessions=kept) as gateway, talking(gateway) as talk:
        input_settings = {**BY_HAND["audio"]["input"], "format": {"type": form}}
        talk.update(audio={"input": input_settings})
        for sound in sounds:
            say(talk, sound, form)
        assert resampled == [len(sound) for sound in sounds]
        got = heard(gateway)
    assert len(got) == len(sounds)
    for sound, samples in zip(sounds, got, strict=True):
        given = RawAudio(decoded(encoded(sound, form), form), rate_hz)
        (expected,) = SoundTrack(given, "audio").samples(16_000)
        assert np.array_equal(samples, expected)


def test_what_an_answer_ahead_has_read_is_kept_with_the_turn(
    tmp_path: Path, resampled: list[int]
) -> None:
    bounds = SessionBounds(history_ahead=0)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        talk.append(np.concatenate([silence(0.5), tone(0.4), silence(0.25)]))
        talk.until("input_audio_buffer.speech_started")
        wait_until(lambda: len(resampled) == 1)
        talk.append(silence(0.5))
        assert talk.until("response.done")["response"]["status"] == "completed"
        talk.write("And now?")
        assert talk.answer()["status"] == "completed"
        assert len(heard(gateway)) == 1
    assert len(resampled) == 1


def test_audio_without_room_for_it_is_resampled_again(tmp_path: Path, resampled: list[int]) -> None:
    first, second = tone(3), tone(4)
    # For both, and what was resampled of one: at most 5 s at 16 kHz as float32.
    room = 2 * (len(first) + len(second)) + 4 * 16_000 * 5
    bounds = SessionBounds(answer_ahead=0, history_ahead=0, max_bytes=room)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway) as talk:
        talk.update(**BY_HAND, truncation="disabled")
        say(talk, first)
        say(talk, second)
        talk.write("And now?")
        assert talk.answer()["status"] == "completed"
        assert len(heard(gateway)) == 2
    assert resampled == [len(first), len(first), len(second), len(first)]
