"""Where the images and videos of a rendered prompt are, which its M-RoPE positions follow from."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omnistage.stages.vllm.models.rope import Grid, VideoIds

MAX_GRIDS = 1 << 16


class Grids:
    """Grids of the images and videos of a prompt.

    vLLM sends a medium that its engine has cached without its fields: they are remembered here
    by the medium's hash.
    """

    def __init__(self, config: Any) -> None:
        self._merge = config.thinker_config.vision_config.spatial_merge_size
        self._per_second = config.thinker_config.position_id_per_seconds
        self._video_ids = video_ids(config.thinker_config)
        self._seen: OrderedDict[str, tuple[tuple[int, int, int], float]] = OrderedDict()

    def of(self, prompt: Mapping[str, Any]) -> list[Grid]:
        """In the order of their offsets."""
        grids = []
        for modality in ("image", "video"):
            ranges = prompt.get("mm_placeholders", {}).get(modality, ())
            if not ranges:
                continue
            items = prompt["mm_kwargs"][modality]
            hashes = prompt["mm_hashes"][modality]
            for where, item, key in zip(ranges, items, hashes, strict=True):
                size, step = self._fields(modality, item, key)
                if modality == "video":
                    ids = prompt["prompt_token_ids"]
                    grids.append(self._video_ids.grid(ids, where.offset, size, step))
                else:
                    grids.append(Grid(where.offset, size, step))
        return sorted(grids, key=lambda grid: grid.offset)

    def _fields(self, modality: str, item: Any, key: str) -> tuple[tuple[int, int, int], float]:
        if item is None:
            return self._seen[key]
        t, h, w = item[f"{modality}_grid_thw"].data.flatten().tolist()
        seconds = 1.0
        if modality == "video":
            field = item.get("second_per_grid_ts")
            seconds = 2.0 if field is None else float(field.data)
        size = (int(t), int(h) // self._merge, int(w) // self._merge)
        self._seen[key] = size, seconds * self._per_second
        self._seen.move_to_end(key)
        while len(self._seen) > MAX_GRIDS:
            self._seen.popitem(last=False)
        return self._seen[key]


def check_encoder_room(grids: Sequence[Grid], num_places: int) -> None:
    """Raise ValueError for a video and its sound that are more than the engine encodes at once.

    vLLM looks at each of the two for itself. The first token needs both, so the request would wait
    for ever.
    """
    for grid in grids:
        if grid.sounds and grid.num_tokens > num_places:
            raise ValueError(
                f"A video has {grid.num_tokens} tokens with its sound, more than the {num_places} "
                "of the engine's encoder cache: ask for fewer frames or pixels, or a part of it"
            )


def video_ids(thinker_config: Any) -> VideoIds:
    """Returns the video ids of a thinker's configuration."""
    return VideoIds(thinker_config.video_token_id, thinker_config.audio_token_id)


def grids_of(
    thinker_config: Any, token_ids: list[int], media: Iterable[tuple[int, str, Mapping[str, Any]]]
) -> list[Grid]:
    """Return the grids of a prompt's `media`: offset, modality and sizes, as vLLM lists them."""
    grids = []
    videos = video_ids(thinker_config)
    for offset, modality, data in media:
        if modality not in ("image", "video"):
            continue
        size = (data["grid_t"], data["grid_h"], data["grid_w"])
        if modality == "video":
            grids.append(videos.grid(token_ids, offset, size, data["t_factor"]))
        else:
            grids.append(Grid(offset, size, data["t_factor"]))
    return grids
