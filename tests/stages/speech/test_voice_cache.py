"""Features of sounds that are known, in memory and in a folder."""

import os
from pathlib import Path

import numpy as np
import pytest

from omnistage.stages.speech import voice_cache
from omnistage.stages.speech.voice_cache import Features, VoiceCache


def cache_in(folder: Path | None = None) -> VoiceCache:
    return VoiceCache({"speaker": np.float32, "codes": np.int32}, "weights", folder)


def features_of(number: int) -> Features:
    random = np.random.default_rng(number)
    codes = random.integers(0, 64, (5, 4), dtype=np.int32)
    return {"speaker": random.standard_normal(8).astype(np.float32), "codes": codes}


def same(one: Features, other: Features) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in ("speaker", "codes"))


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "features").iterdir())


def found(cache: VoiceCache, count: int) -> list[int]:
    """Which of so many are known, by their numbers; to look does not change it."""
    return [number for number in range(count) if str(number) in cache._known]


def test_in_memory_the_one_goes_first_that_was_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(voice_cache, "MAX_KNOWN", 3)
    cache = cache_in()
    for number in range(3):
        cache.put(str(number), features_of(number))
    assert cache.get("0") is not None
    cache.put("3", features_of(3))
    assert found(cache, 4) == [0, 2, 3]
    assert cache.get("1") is None


def test_in_the_folder_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(voice_cache, "MAX_STORED", 3)
    now = iter(range(1_000_000_000, 2_000_000_000))

    def asked_now(path: Path) -> None:
        second = next(now)
        utime(path, (second, second))

    utime = os.utime
    monkeypatch.setattr(os, "utime", asked_now)
    for number in range(3):
        cache = cache_in(tmp_path)
        cache.put(str(number), features_of(number))
        assert cache_in(tmp_path).get(str(number)) is not None
    assert cache_in(tmp_path).get("0") is not None
    cache_in(tmp_path).put("3", features_of(3))
    assert len(stored(tmp_path)) == 3
    kept = [cache_in(tmp_path).get(str(number)) for number in range(4)]
    assert [one is not None for one in kept] == [True, False, True, True]


def test_no_damaged_byte_gives_other_features(tmp_path: Path) -> None:
    cache_in(tmp_path).put("one", features_of(1))
    (path,) = stored(tmp_path)
    whole = path.read_bytes()
    num_read = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        read = cache_in(tmp_path).get("one")
        num_read += read is not None
        assert read is None or same(read, features_of(1))
    assert num_read < len(whole) / 4  # spaces of the header, and little else


def test_a_file_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def killed(self: Path, target: Path) -> Path:
        assert len(self.read_bytes()) > 100
        raise OSError("the disk is gone")

    cache = cache_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        cache.put("one", features_of(1))
    assert "the disk is gone" in caplog.text
    assert stored(tmp_path) == []
    assert cache.get("one") is not None
    assert cache_in(tmp_path).get("one") is None


def test_what_a_killed_writer_left_is_removed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice_cache, "MAX_STORED", 1)
    (tmp_path / "features").mkdir()
    left = tmp_path / "features" / "some.1.part"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    cache_in(tmp_path).put("one", features_of(1))
    assert len(stored(tmp_path)) == 1
    assert not left.exists()


def test_a_folder_that_cannot_be_written_costs_the_restart_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "features").write_text("a file")
    cache = cache_in(tmp_path)
    cache.put("one", features_of(1))
    known = cache.get("one")
    assert known is not None
    assert same(known, features_of(1))
    assert "features of a voice are not kept" in caplog.text


def test_a_folder_that_can_only_be_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_in(tmp_path).put("a", features_of(1))

    def refuse(path: Path) -> None:
        raise PermissionError(f"{path} is another's")

    monkeypatch.setattr(os, "utime", refuse)
    known = cache_in(tmp_path).get("a")
    assert known is not None
    assert same(known, features_of(1))


def test_an_empty_tensor_is_not_enough_where_it_is_needed() -> None:
    cache = cache_in()
    cache.put("one", {"speaker": np.ones(8, np.float32), "codes": np.zeros((0, 4), np.int32)})
    assert cache.get("one") is not None
    assert cache.get("one", "speaker") is not None
    assert cache.get("one", "speaker", "codes") is None


def test_a_file_of_other_tensors_is_not_taken(tmp_path: Path) -> None:
    cache_in(tmp_path).put("one", features_of(1))
    other = VoiceCache({"speaker": np.float32}, "weights", tmp_path)
    assert other.get("one") is None
