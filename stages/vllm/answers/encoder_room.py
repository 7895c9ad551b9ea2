"""Refuses a medium that is more than an engine's encoder takes at once, and names its part."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omnistage.stage_configs.json_types import JsonMap

# Parts of messages by vLLM's names of what they are; a heard video has the n-th sound, too.
KINDS = {
    "audio": ("input_audio", "audio_url", "video_url"),
    "image": ("image_url",),
    "video": ("video_url",),
}
NAMED = re.compile(r"^(audio|image|video)\[(\d+)\] ")


def check_each(placeholders: Mapping[str, Sequence[Any]], num_places: int) -> None:
    """Raise ValueError for the first medium of a rendered prompt with more tokens than that."""
    for modality, places in placeholders.items():
        for number, place in enumerate(places):
            num_tokens = place.get_num_embeds()
            if num_tokens > num_places:
                raise ValueError(
                    f"{modality}[{number}] has {num_tokens} tokens, more than the {num_places} "
                    "that this model's stage encodes at once: send a shorter or smaller one"
                )


def with_part(message: str, body: Mapping[str, object]) -> tuple[str, str | None]:
    """Return such a message with the part's place in its place, and the place; else as it is."""
    found = NAMED.match(message)
    if found is None:
        return message, None
    places, number = places_of(body, found[1]), int(found[2])
    if number >= len(places):
        return message, None
    return message.replace(found[0], f"{places[number]} ", 1), places[number]


def places_of(body: JsonMap, modality: str) -> list[str]:
    """Return the places of a body's parts that have media of vLLM's name, in order."""
    return [
        f"messages[{i}].content[{j}]"
        for i, one in enumerate(body.get("messages", ()))
        if isinstance(one.get("content"), list)
        for j, part in enumerate(one["content"])
        if part["type"] in KINDS[modality]
    ]
