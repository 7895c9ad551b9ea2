"""Voices that are kept: over a restart, within bounds, whole or not at all."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.tasks.speech.reference import Reference
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.server.tasks.speech.voice_files import ENDING, UNFINISHED


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


SOUND = Reference.of(np.linspace(-1, 1, 24_000, dtype=np.float32), "what is said")


@pytest.fixture(params=["memory", "folder"])
def voices(request: pytest.FixtureRequest, tmp_path: Path) -> StoredVoices:
    return StoredVoices(tmp_path if request.param == "folder" else None, max_voices=3)


async def test_a_voice_is_found_by_its_id_and_by_its_name_in_any_case(
    voices: StoredVoices,
) -> None:
    voice = await voices.add("My Voice", "cons_1", SOUND)
    assert voices.get(voice.id) == voices.find(voice.id) == voices.find("my voice") == voice
    assert (voice.consent, voice.ref_text, voice.seconds) == ("cons_1", "what is said", 1.0)
    kept = await voices.reference(voice)
    assert np.array_equal(kept.samples, SOUND.samples)
    assert (kept.key, kept.text) == (SOUND.key, "what is said")


async def test_a_deleted_voice_is_gone_and_its_name_is_free(voices: StoredVoices) -> None:
    voice = await voices.add("a", "c", SOUND)
    reference = await voices.reference(voice)
    await voices.delete(voice.id)
    assert len(reference.samples) == 24_000  # who has it keeps it
    assert voices.find("a") is None
    with pytest.raises(ApiError) as gone:
        await voices.delete(voice.id)
    assert (gone.value.status, gone.value.code) == (404, "voice_not_found")
    with pytest.raises(ApiError) as late:  # it was chosen before
        await voices.reference(voice)
    assert (late.value.status, late.value.param) == (400, "voice")
    await voices.add("A", "c", SOUND)


async def test_a_name_is_of_one_voice_alone(voices: StoredVoices) -> None:
    await voices.add("a", "c", SOUND)
    for name, taken in (("A", ()), ("Ethan", ["ethan"])):
        with pytest.raises(ApiError, match="is the name of another voice") as caught:
            await voices.add(name, "c", SOUND, taken)
        assert caught.value.param == "name"


async def test_nothing_stored_makes_room_for_what_is_new(voices: StoredVoices) -> None:
    kept = [await voices.add(name, "c", SOUND) for name in "abc"]
    with pytest.raises(ApiError, match="delete one first") as caught:
        await voices.add("d", "c", SOUND)
    assert caught.value.code == "voices_full"
    assert list(voices.all) == kept


async def test_the_bytes_of_all_are_bounded() -> None:
    voices = StoredVoices(max_bytes=3 * 96_000 - 1)
    for name in "ab":
        await voices.add(name, "c", SOUND)
    with pytest.raises(ApiError, match="delete one first"):
        await voices.add("c", "c", SOUND)


async def test_a_folder_is_read_again_after_a_restart(tmp_path: Path) -> None:
    before = StoredVoices(tmp_path)
    kept = [await before.add(name, "c", SOUND) for name in "ab"]
    gone = await before.add("c", "c", SOUND)
    await before.delete(gone.id)
    after = StoredVoices(tmp_path)
    assert sorted(voice.id for voice in after.all) == sorted(voice.id for voice in kept)
    assert np.array_equal((await after.reference(kept[0])).samples, SOUND.samples)


async def test_files_of_voices_are_for_nobody_else(tmp_path: Path) -> None:
    await StoredVoices(tmp_path).add("a", "c", SOUND)
    (name,) = names_in(tmp_path)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


async def test_a_broken_file_is_told_in_the_log_skipped_and_left_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = await StoredVoices(tmp_path).add("good", "c", SOUND)
    whole = (tmp_path / f"{good.id}{ENDING}").read_bytes()
    broken = {
        "no_line": b"",
        "no_json": b"{\n",
        "cut": whole.replace(good.id.encode(), b"cut")[:-4],
        "renamed": whole,
        "newer": whole.replace(good.id.encode(), b"newer").replace(b'"version":1', b'"version":2'),
    }
    for name, data in broken.items():
        (tmp_path / f"{name}{ENDING}").write_bytes(data)
    (tmp_path / "features.safetensors").write_bytes(b"another's")
    with caplog.at_level(logging.WARNING):
        assert list(StoredVoices(tmp_path).all) == [good]
    assert len(caplog.records) == len(broken)
    assert all(any(name in record.getMessage() for record in caplog.records) for name in broken)
    assert names_in(tmp_path) >= {f"{name}{ENDING}" for name in broken}


async def test_samples_that_changed_are_an_error_and_no_other_voice(tmp_path: Path) -> None:
    voices = StoredVoices(tmp_path)
    voice = await voices.add("a", "c", SOUND)
    path = tmp_path / f"{voice.id}{ENDING}"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ApiError) as caught:
        await voices.reference(voice)
    assert (caught.value.status, caught.value.code) == (500, "voice_broken")


async def test_what_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = StoredVoices(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ApiError) as caught:
        await voices.add("a", "c", SOUND)
    assert (caught.value.status, caught.value.code) == (500, "not_stored")
    assert not names_in(tmp_path)
    assert not voices.all


def test_what_a_killed_server_was_writing_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"voice_1{ENDING}{UNFINISHED}").write_bytes(b"{")
    assert not StoredVoices(tmp_path).all
    assert not names_in(tmp_path)


async def test_who_speaks_with_a_voice_at_once_shares_its_sound(tmp_path: Path) -> None:
    voices = StoredVoices(tmp_path)
    voice = await voices.add("a", "c", SOUND)
    first = await voices.reference(voice)
    second = await voices.reference(voice)
    assert second.samples is first.samples
