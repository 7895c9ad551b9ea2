"""Extensions of vLLM's thinkers for videos with audio: the audio beside it, and their order.

vLLM puts the embeddings of one step's media where their tokens are, in the order in which it has
them: a video's, then its sound's. It sees that the tokens of both alternate, but not in a step that
ends or begins in the middle of them and so has, say, the last of a sound before the video's rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from vllm.multimodal.processing import ProcessorInputs

HEARD = "use_audio_in_video"


class NothingCached:
    """A cache without any medium."""

    def is_cached(self, hashes: Sequence[str]) -> list[bool]:
        """Not one of them."""
        return [False] * len(hashes)


class HeardInputs(ProcessorInputs):
    """Media of a prompt whose videos are heard; what is cached of a video is of it and its sound.

    How the tokens of both alternate is cached with the video, and follows from the sound, too.
    """

    def get_mm_hashes(self, *about: object) -> dict[str, list[str]]:
        """Hashes like the in-tree class; a video and its audio have hashes of both."""
        hashes: dict[str, list[str]] = super().get_mm_hashes(*about)
        pairs = list(zip(hashes.get("video", ()), hashes.get("audio", ()), strict=False))
        seen = {"video": [f"{video}-{sound}" for video, sound in pairs]}
        heard = {"audio": [f"{sound}-{video}" for video, sound in pairs]}
        return hashes | seen | heard if pairs else hashes


class HearsVideos:
    """A processor before vLLM's class: a video is processed with its audio, or neither is."""

    def apply(self, inputs: ProcessorInputs, *more: Any, **named: Any) -> Any:
        """Applies like the in-tree class, which some of vLLM call by names."""
        if inputs.hf_processor_mm_kwargs.get(HEARD):
            inputs = HeardInputs(**{one.name: getattr(inputs, one.name) for one in fields(inputs)})
        return super().apply(inputs, *more, **named)  # type: ignore[misc]  # of the class that follows

    def _get_cache_missing_items(self, cache: Any, mm_data_items: Any, mm_hashes: Any) -> Any:
        """Returns all items of a prompt with audio and videos, or none; others like the in-tree
        class.

        Each medium is cached for itself; that class refuses a video whose sound alone is cached.
        """
        if {"audio", "video"} <= mm_hashes.keys():
            cached = [cache.is_cached(hashes) for hashes in mm_hashes.values()]
            if not all(map(all, cached)):
                cache = NothingCached()
        return super()._get_cache_missing_items(  # type: ignore[misc]
            cache, mm_data_items, mm_hashes
        )


class NamedRows(list[torch.Tensor]):
    """Embeddings of media, each with its `modality`, as vLLM's runner names them.

    What is put in the place of one is of the same modality: vLLM 0.28 cuts a picture's rows without
    saying it, and then looks for it.
    """

    def __setitem__(self, index: Any, rows: Any) -> None:
        """With the modality of what was there."""
        rows.modality = self[index].modality
        super().__setitem__(index, rows)


def in_order_of_tokens(
    sounds: Sequence[torch.Tensor],
    pictures: Sequence[torch.Tensor],
    token_ids: Sequence[int],
    modalities: Mapping[int, str],
) -> list[torch.Tensor]:
    """The embeddings of one step's media, cut so that they come in the order of their tokens.

    `pictures`: of images and videos. `token_ids`: those of the step that stand for media, of which
    `modalities` says which.
    """
    rows_of = {True: torch.cat(list(sounds)), False: torch.cat(list(pictures))}
    ordered = []
    for token_id, count in _runs(token_ids):
        is_sound = modalities[token_id] == "audio"
        rows, rows_of[is_sound] = rows_of[is_sound][:count], rows_of[is_sound][count:]
        rows.modality = modalities[token_id]  # type: ignore[attr-defined]  # as vLLM's runner says
        ordered.append(rows)
    return NamedRows(ordered)


def _runs(token_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each token id with the number of its equals that follow each other."""
    start = 0
    for end in range(1, len(token_ids) + 1):
        if end == len(token_ids) or token_ids[end] != token_ids[start]:
            yield token_ids[start], end - start
            start = end
