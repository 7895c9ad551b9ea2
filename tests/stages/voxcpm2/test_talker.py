"""What the talker makes of a request, and what it refuses, without an engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from references.voxcpm2_talks import TALKS, Talk, key, sound_of
from support.stages.tts_talker import close_ports, opened, talker_ports

from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.messages.edge import Lead
from omnistage.stages.speech.talker_parts import SpokenPrompt
from omnistage.stages.voxcpm2 import voice_encoder
from omnistage.stages.voxcpm2.given_text import VoxCpm2GivenText, described
from omnistage.stages.voxcpm2.step_schema import AUDIO, CONTINUES
from omnistage.stages.voxcpm2.talker import Talker
from omnistage.stages.voxcpm2.talker_prompt import talker_prompt
from omnistage.stages.voxcpm2.voice_encoder import CONTINUED, REFERENCE, LatentEncoder
from omnistage.stages.worker.failure import RequestError

SILENCE = np.zeros(24_000, np.float32)
SAMPLES_A_PATCH = 3840  # of a reference sound at 24 kHz


@contextmanager
def talker(folder: Path, **options: Any) -> Iterator[Talker]:
    run = make_run_directory()
    ports = talker_ports(folder, run.path, list(options.items()), file="voxcpm2_tiny.yaml")
    try:
        yield Talker(ports)
    finally:
        close_ports(ports, run.path)
        run.remove()


async def made(folder: Path, talk: Talk, **options: Any) -> SpokenPrompt:
    body: dict[str, Any] = {"input": talk.text, "instructions": talk.instructions}
    sound = None
    if talk.sound_length:
        sound = sound_of(talk)
        body["reference"] = {"key": str(talk.sound_length), "text": talk.sound_text}
    with talker(folder, **options) as stage:
        return await stage.prompt_of(opened("request", body, sound=sound), "")


def named(name: str) -> Talk:
    return next(talk for talk in TALKS if talk.name == name)


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
def test_ids_equal_the_package(
    talk: Talk, voxcpm2_checkpoint: Path, voxcpm2_spoken: dict[str, torch.Tensor]
) -> None:
    text = VoxCpm2GivenText(str(voxcpm2_checkpoint))
    ids = text.tokens((talk.sound_text or "") + described(talk.text, talk.instructions))
    assert ids == voxcpm2_spoken[key(talk, "ids")].tolist()


def test_a_token_of_two_chinese_characters_is_two(voxcpm2_checkpoint: Path) -> None:
    text = VoxCpm2GivenText(str(voxcpm2_checkpoint))
    one, other = (text.tokens(character)[-1] for character in "\u4f60\u597d")
    assert text.tokens("\u4f60\u597d")[-2:] == [one, other]


def test_names_of_special_tokens_are_text(voxcpm2_checkpoint: Path) -> None:
    text = VoxCpm2GivenText(str(voxcpm2_checkpoint))
    assert not {101, 102, 103, 104, 2} & set(text.tokens("a<|audio_start|></s>b"))


def test_a_description_stands_in_parentheses() -> None:
    assert described("Yes", " low ") == "(low)Yes"
    assert described("Yes", " ") == "Yes"


def test_the_rows_of_a_prompt() -> None:
    none = -1
    plain, reference, continued = (
        talker_prompt([7, 8], count, continues)
        for count, continues in ((0, False), (2, False), (2, True))
    )
    assert plain.text.tolist() == [7, 8, 101]
    assert plain.audio.tolist() == [none] * 3
    assert reference.text.tolist() == [103, none, none, 104, 7, 8, 101]
    assert reference.audio.tolist() == [none, 0, 1, none, none, none, none]
    assert continued.text.tolist() == [7, 8, 101, none, none]
    assert continued.audio.tolist() == [none, none, none, 0, 1]


async def test_a_sound_with_words_is_gone_on_from(voxcpm2_checkpoint: Path) -> None:
    """The decoder begins with its last patches."""
    talk = named("long sound with a word")
    prompt = await made(voxcpm2_checkpoint, talk)
    assert CONTINUES in prompt.options.model
    num_patches = -(-talk.sound_length // SAMPLES_A_PATCH)
    latents = np.frombuffer(prompt.options.model[AUDIO], np.float32).reshape(-1, 4, 16)
    assert len(latents) == num_patches > 3
    assert prompt.about == Lead(3)
    assert np.array_equal(prompt.tensors["lead"].numpy(), latents[-3:])


async def test_a_sound_without_words_is_only_a_voice(voxcpm2_checkpoint: Path) -> None:
    prompt = await made(voxcpm2_checkpoint, named("a voice"))
    assert AUDIO in prompt.options.model
    assert CONTINUES not in prompt.options.model
    assert prompt.about is None


async def test_speech_is_as_long_as_its_text_allows(voxcpm2_checkpoint: Path) -> None:
    """Six patches a token and ten, of the text with its description, not of the sound's words."""
    text = VoxCpm2GivenText(str(voxcpm2_checkpoint))
    for name in ("told", "a voice with words"):
        talk = named(name)
        spoken = text.tokens(described(talk.text, talk.instructions))
        assert (await made(voxcpm2_checkpoint, talk)).max_frames == 6 * len(spoken) + 10


async def test_a_text_of_nothing_is_refused(voxcpm2_checkpoint: Path) -> None:
    for text in ("", " \n"):
        with pytest.raises(RequestError) as caught:
            await made(voxcpm2_checkpoint, Talk("nothing", text, 1))
        assert (caught.value.status, caught.value.param) == (400, "input")


async def test_a_sound_of_more_patches_than_the_model_keeps_is_refused(
    voxcpm2_checkpoint: Path,
) -> None:
    too_long = Talk("long", "Yes", 1, sound_length=385 * SAMPLES_A_PATCH)
    with pytest.raises(RequestError, match="385 patches; at most 384") as caught:
        await made(voxcpm2_checkpoint, too_long)
    assert caught.value.param == "voice"


def test_a_silent_sound_is_refused_by_name(voxcpm2_checkpoint: Path) -> None:
    encoder = LatentEncoder(str(voxcpm2_checkpoint))
    for way in (REFERENCE, CONTINUED):
        with pytest.raises(RequestError, match="the reference sound is silent") as caught:
            encoder.latents(SILENCE, "silence", way)
        assert caught.value.param == "voice"


def test_latents_are_made_once_and_kept_over_a_restart(
    voxcpm2_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = sound_of(named("a voice"))
    before = LatentEncoder(str(voxcpm2_checkpoint), str(tmp_path))
    made = {way: before.latents(sound, "key", way) for way in (REFERENCE, CONTINUED)}
    assert not np.array_equal(made[REFERENCE], made[CONTINUED])  # 24,000 is no whole patch

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was kept")

    monkeypatch.setattr(voice_encoder, "at_rate", never)
    for encoder in (before, LatentEncoder(str(voxcpm2_checkpoint), str(tmp_path))):
        for way, latents in made.items():
            assert np.array_equal(encoder.latents(sound, "key", way), latents)


def test_a_wrong_option_is_refused(voxcpm2_checkpoint: Path) -> None:
    with (
        pytest.raises(ValueError, match="options of the talker"),
        talker(voxcpm2_checkpoint, text="streamed"),
    ):
        pass
