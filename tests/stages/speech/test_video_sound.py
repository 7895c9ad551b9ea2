"""Embeddings of videos with their sounds, in steps that are cut anywhere."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from vllm.multimodal.processing import ProcessorInputs

from omnistage.stages.speech.video_sound import HearsVideos, in_order_of_tokens

SOUND, IMAGE, VIDEO = 1, 2, 3
MODALITIES = {SOUND: "audio", IMAGE: "image", VIDEO: "video"}
# An image, a video that is heard, one that ends with its sound, and a sound alone.
TOKENS = [IMAGE] * 3 + [VIDEO] * 2 + [SOUND] * 3 + [VIDEO] * 2 + [SOUND] + [VIDEO] * 2 + [SOUND] * 2
MEDIA = [slice(0, 3), slice(3, 11), slice(11, 15)]
WIDTHS = {SOUND: 4, IMAGE: 12, VIDEO: 12}
KINDS = (IMAGE, VIDEO, SOUND)


def step(start: int, end: int) -> list[torch.Tensor]:
    """The rows of the media in a step's tokens as vLLM's runner has them; a row is its place."""
    found = []
    for medium in MEDIA:
        places = range(max(start, medium.start), min(end, medium.stop))
        for kind in KINDS:
            rows = [torch.full((WIDTHS[kind],), place) for place in places if TOKENS[place] == kind]
            if rows:
                found.append(torch.stack(rows))
    return found


def rows_of(rows: Sequence[torch.Tensor], *modalities: str) -> list[torch.Tensor]:
    return [one for one in rows if MODALITIES[TOKENS[int(one[0, 0])]] in modalities]


@pytest.mark.parametrize("start", range(len(TOKENS)))
def test_embeddings_come_in_the_order_of_their_tokens_wherever_a_step_is_cut(start: int) -> None:
    for end in range(start + 1, len(TOKENS) + 1):
        rows = step(start, end)
        sounds, pictures = rows_of(rows, "audio"), rows_of(rows, "image", "video")
        if not (sounds and pictures):
            continue
        ordered = in_order_of_tokens(sounds, pictures, TOKENS[start:end], MODALITIES)
        places = [int(row[0]) for one in ordered for row in one]
        assert places == list(range(start, end))
        for one in ordered:
            kinds = {MODALITIES[TOKENS[int(row[0])]] for row in one}
            assert kinds == {one.modality}  # type: ignore[attr-defined]


def test_what_is_put_in_the_place_of_rows_is_of_their_modality() -> None:
    """vLLM 0.28 puts a part of a picture's rows there, and fails for want of its modality."""
    rows = step(0, len(TOKENS))
    sounds, pictures = rows_of(rows, "audio"), rows_of(rows, "image", "video")
    ordered: list[Any] = in_order_of_tokens(sounds, pictures, TOKENS, MODALITIES)
    before = [one.modality for one in ordered]
    for index, one in enumerate(ordered):
        ordered[index] = one[:, :4].clone()
    assert [one.modality for one in ordered] == before


class Cache:
    def __init__(self, hashes: Sequence[str]) -> None:
        self._hashes = hashes

    def is_cached(self, hashes: Sequence[str]) -> list[bool]:
        return [one in self._hashes for one in hashes]


@pytest.mark.parametrize(
    ("cached", "hashes", "expected"),
    [
        (["a"], {"video": ["v"], "audio": ["a"]}, {"video": [False], "audio": [False]}),
        (["v"], {"video": ["v"], "audio": ["a"]}, {"video": [False], "audio": [False]}),
        (["a", "v"], {"video": ["v"], "audio": ["a"]}, {"video": [True], "audio": [True]}),
        (["a"], {"audio": ["a", "b"]}, {"audio": [True, False]}),
    ],
)
def test_a_video_and_its_sound_are_taken_from_the_cache_together_or_not_at_all(
    cached: list[str],
    hashes: dict[str, list[str]],
    expected: dict[str, list[bool]],
) -> None:
    class Base:
        def _get_cache_missing_items(self, cache: Cache, items: Any, hashes: Any) -> Any:
            return {name: cache.is_cached(of_kind) for name, of_kind in hashes.items()}

    class Processor(HearsVideos, Base):
        pass

    assert Processor()._get_cache_missing_items(Cache(cached), {}, hashes) == expected


class Hashing:
    """vLLM's class as far as it asks for hashes."""

    def apply(self, inputs: ProcessorInputs, timing_ctx: Any) -> Any:
        return inputs.get_mm_hashes("model")  # 0.26 has one argument


class HashingProcessor(HearsVideos, Hashing):
    pass


def hashes_of(sound: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, list[str]]:
    monkeypatch.setattr(
        ProcessorInputs, "get_mm_hashes", lambda *_: {"video": ["v"], "audio": [sound]}
    )
    inputs: Any = ProcessorInputs([1], {}, hf_processor_mm_kwargs=options)
    found: dict[str, list[str]] = HashingProcessor().apply(inputs, timing_ctx=None)
    assert found == HashingProcessor().apply(inputs, None)  # vLLM 0.26 does both
    return found


def test_a_heard_video_is_cached_with_its_sound_and_an_unheard_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How their tokens alternate is cached with the video."""
    one, other, again = (
        hashes_of(sound, monkeypatch, use_audio_in_video=True) for sound in ("a", "b", "a")
    )
    assert not set(one["video"]) & set(other["video"])
    assert not set(one["audio"]) & set(one["video"])
    assert one == again
    unheard = [hashes_of(sound, monkeypatch)["video"] for sound in ("a", "b")]
    assert unheard == [["v"], ["v"]]
