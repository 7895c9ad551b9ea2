"""What vLLM's thinker needs so that a video is heard: the sound beside it, and the order of both.

vLLM puts the embeddings of one step's media where their tokens are, in the order in which it has
them: a video's, then its sound's. It sees that the tokens of both alternate, but not in a step that
ends or begins in the middle of them and so has, say, the last of a sound before the video's rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerMultiModalProcessor


class NothingCached:
    """A cache without any medium."""

    def is_cached(self, hashes: Sequence[str]) -> list[bool]:
        """Not one of them."""
        return [False] * len(hashes)


class ThinkerProcessor(Qwen3OmniMoeThinkerMultiModalProcessor):
    """The in-tree class; a video is processed with its sound, or neither is."""

    def _get_cache_missing_items(self, cache: Any, mm_data_items: Any, mm_hashes: Any) -> Any:
        """As the in-tree class, but of a prompt with sounds and videos all are processed, or none.

        Each medium is cached for itself; that class refuses a video whose sound alone is cached.
        """
        if {"audio", "video"} <= mm_hashes.keys():
            cached = [cache.is_cached(hashes) for hashes in mm_hashes.values()]
            if not all(map(all, cached)):
                cache = NothingCached()
        return super()._get_cache_missing_items(cache, mm_data_items, mm_hashes)


def in_order_of_tokens(
    embeddings: Sequence[torch.Tensor], token_ids: Sequence[int], modalities: Mapping[int, str]
) -> list[torch.Tensor]:
    """The embeddings of one step's media, cut so that they come in the order of their tokens.

    `token_ids`: those of the step that stand for media, of which `modalities` says which. Sounds
    are told from pictures by their width: a picture's rows have what deepstack adds to.
    """
    narrow = min(rows.shape[-1] for rows in embeddings)
    sounds = _joined([rows for rows in embeddings if rows.shape[-1] == narrow])
    pictures = _joined([rows for rows in embeddings if rows.shape[-1] != narrow])
    ordered = []
    for token_id, count in _runs(token_ids):
        is_sound = modalities[token_id] == "audio"
        stream = sounds if is_sound else pictures
        rows, rest = stream[:count], stream[count:]
        sounds, pictures = (rest, pictures) if is_sound else (sounds, rest)
        rows.modality = modalities[token_id]  # type: ignore[attr-defined]  # as vLLM's runner says
        ordered.append(rows)
    return ordered


def _joined(embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(embeddings))


def _runs(token_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each token id with the number of its equals that follow each other."""
    start = 0
    for end in range(1, len(token_ids) + 1):
        if end == len(token_ids) or token_ids[end] != token_ids[start]:
            yield token_ids[start], end - start
            start = end
