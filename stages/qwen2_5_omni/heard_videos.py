"""The prompts of videos that are heard: how the tokens of a video and of its sound alternate.

Math: Qwen2_5OmniProcessor of transformers. Both are cut to chunks of two seconds, and the chunks
alternate, a video's first. A chunk ends before the first token that is not earlier than so many
chunks' time; so where frames are further apart than a chunk is long, the cut is within a frame.
vLLM's own class leaves gaps there instead, and takes every video for one of two frames a second.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerMultiModalProcessor
from vllm.multimodal.processing import PromptUpdateDetails

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.speech.video_sound import HEARD, HearsVideos

FPS = 2.0  # the reference's, of a request that does not say


class ThinkerProcessor(HearsVideos, Qwen2_5OmniThinkerMultiModalProcessor):
    """The in-tree class; videos are heard as the reference hears them."""

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: JsonMap, out_mm_kwargs: Any
    ) -> Sequence[Any]:
        """Returns the updates of the in-tree class, but for the placeholder of a video with
        audio.
        """
        updates = super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)
        if not hf_processor_mm_kwargs.get(HEARD):
            return updates
        config, data = self.info.get_hf_config(), out_mm_kwargs.get_data()
        options = self.info.ctx.get_merged_mm_kwargs(hf_processor_mm_kwargs)
        seconds = config.vision_config.temporal_patch_size / (options.get("fps") or FPS)

        def tokens(number: int) -> Any:
            size = data["video_grid_thw"][number].tolist()
            num_sounds = num_sound_tokens(int(data["audio_feature_lengths"][number]))
            return PromptUpdateDetails.select_token_id(
                heard_tokens(config, size, seconds, num_sounds),
                embed_token_id=config.video_token_index,
            )

        return [
            replace(update, replacement=tokens) if update.modality == "video" else update
            for update in updates
        ]


def num_sound_tokens(num_mel_frames: int) -> int:
    """Returns the tokens of audio: the encoder halves its frames twice."""
    return ((num_mel_frames - 1) // 2 + 1 - 2) // 2 + 1


def heard_tokens(config: Any, size: Sequence[int], seconds: float, num_sounds: int) -> list[int]:
    """Returns what stands for a video and its sound in a prompt of a thinker with this
    configuration.

    `size`: time slices, rows and columns before merging; `seconds`: from one slice to the next.
    """
    merge = config.vision_config.spatial_merge_size
    per_second = config.position_id_per_seconds
    per_chunk = int(per_second * config.seconds_per_chunk)
    slices = np.repeat(np.arange(size[0]), (size[1] // merge) * (size[2] // merge))
    patches = chunk_sizes(slices * seconds * per_second, per_chunk)
    sounds = chunk_sizes(np.arange(num_sounds), per_chunk)
    tokens = [config.audio_start_token_id]
    for num_patches, num_sound in zip_longest(patches, sounds, fillvalue=0):
        tokens += [config.video_token_index] * num_patches
        tokens += [config.audio_token_index] * num_sound
    return [*tokens, config.audio_end_token_id]


def chunk_sizes(times: npt.NDArray[Any], per_chunk: int) -> Iterator[int]:
    """How many tokens of these times, none earlier than the one before, are in each chunk."""
    start, end = 0, per_chunk
    for number, time in enumerate(times.tolist()):
        if time >= end:
            yield number - start
            start, end = number, end + per_chunk
    yield len(times) - start
