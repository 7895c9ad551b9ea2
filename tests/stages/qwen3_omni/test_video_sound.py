"""Embeddings of videos with their sounds, in steps that are cut anywhere."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omnistage.stages.qwen3_omni.video_sound import ThinkerProcessor, in_order_of_tokens

SOUND, IMAGE, VIDEO = 1, 2, 3
MODALITIES = {SOUND: "audio", IMAGE: "image", VIDEO: "video"}
# An image, a video that is heard, one that ends with its sound, and a sound alone.
TOKENS = [IMAGE] * 3 + [VIDEO] * 2 + [SOUND] * 3 + [VIDEO] * 2 + [SOUND] + [VIDEO] * 2 + [SOUND] * 2
MEDIA = [slice(0, 3), slice(3, 11), slice(11, 15)]
WIDTHS = {SOUND: 4, IMAGE: 12, VIDEO: 12}


def step(start: int, end: int) -> list[torch.Tensor]:
    """The rows of the media in a step's tokens as vLLM's runner has them; a row is its place."""
    found = []
    for medium in MEDIA:
        places = range(max(start, medium.start), min(end, medium.stop))
        for kind in (IMAGE, VIDEO, SOUND):
            rows = [torch.full((WIDTHS[kind],), place) for place in places if TOKENS[place] == kind]
            if rows:
                found.append(torch.stack(rows))
    return found


@pytest.mark.parametrize("start", range(len(TOKENS)))
def test_embeddings_come_in_the_order_of_their_tokens_wherever_a_step_is_cut(start: int) -> None:
    for end in range(start + 1, len(TOKENS) + 1):
        rows = step(start, end)
        if len({one.shape[-1] for one in rows}) < 2:
            continue
        ordered = in_order_of_tokens(rows, TOKENS[start:end], MODALITIES)
        places = [int(row[0]) for one in ordered for row in one]
        assert places == list(range(start, end))
        for one in ordered:
            kinds = {MODALITIES[TOKENS[int(row[0])]] for row in one}
            assert kinds == {one.modality}  # type: ignore[attr-defined]


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base: Any = ThinkerProcessor.__base__
    asked = lambda _, cache, items, hashes: {  # noqa: E731
        name: cache.is_cached(of_kind) for name, of_kind in hashes.items()
    }
    monkeypatch.setattr(base, "_get_cache_missing_items", asked)
    processor = ThinkerProcessor.__new__(ThinkerProcessor)
    assert processor._get_cache_missing_items(Cache(cached), {}, hashes) == expected
