"""The media of a chat, and how much of pictures, videos and their sounds its model gets.

vLLM's clients say it for the request, Qwen's in a part of a message. One request has one value of
each: vLLM processes all of its media alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import FRAME_FIELDS, PIXEL_FIELDS
from omnistage.server.media.video.watching import MAX_FRAMES, MAX_RATE, Watching
from omnistage.stage_configs.declared.sampling import Count, Flag, Number
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.json_types import Json, JsonMap

Pixels = Annotated[Count, Field(ge=1024, le=12_845_056)]
NumFrames = Annotated[Count, Field(ge=2, le=MAX_FRAMES)]
Rate = Annotated[Number, Field(ge=0.05, le=MAX_RATE)]
Part = JsonMap

VIDEO, HEARD = "video_url", "use_audio_in_video"
SOUNDS = ("input_audio", "audio_url")
FIELDS = {
    VIDEO: (*FRAME_FIELDS, *PIXEL_FIELDS),
    "image_url": PIXEL_FIELDS,
    "input_image": PIXEL_FIELDS,
}


class FrameOptions(BaseModel):
    """The frames of a video that are watched: a rate per second, within bounds."""

    model_config = ConfigDict(extra="forbid")

    fps: Rate | None = None
    min_frames: NumFrames | None = None
    max_frames: NumFrames | None = None

    @model_validator(mode="after")
    def _has_frames(self) -> "FrameOptions":
        _check_order("frames", self.min_frames, self.max_frames)
        return self


class PartOptions(FrameOptions):
    """The same, and how much of a picture or a video's frame is seen."""

    min_pixels: Pixels | None = None
    max_pixels: Pixels | None = None

    @model_validator(mode="after")
    def _has_pixels(self) -> "PartOptions":
        _check_order("pixels", self.min_pixels, self.max_pixels)
        return self


class ProcessorOptions(PartOptions):
    """vLLM's `mm_processor_kwargs`, as far as they are taken."""

    use_audio_in_video: Flag | None = None


class MediaOptions(BaseModel):
    """vLLM's `media_io_kwargs`, as far as they are taken."""

    model_config = ConfigDict(extra="forbid")

    video: FrameOptions | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and where the request has it."""

    value: Any
    place: str


def media_options(
    processor: ProcessorOptions | None, loader: MediaOptions | None, messages: Sequence[Part]
) -> dict[str, object]:
    """The two fields of the entry stage's body; raises ApiError. `messages` as the client has them.

    The rate is in both: one says which frames are read, the other how far apart they are.
    """
    given: dict[str, Given] = {}
    if processor is not None:
        _add(given, processor.model_dump(exclude_none=True), "mm_processor_kwargs")
    if loader is not None and loader.video is not None:
        _add(given, loader.video.model_dump(exclude_none=True), "media_io_kwargs.video")
    _add_parts(given, messages)
    values = {name: one.value for name, one in given.items()}
    frames = {name: values.pop(name) for name in FRAME_FIELDS if name in values}
    pixels = {name: values[name] for name in PIXEL_FIELDS if name in values}
    parse(PartOptions, frames | pixels, "mm_processor_kwargs")  # bounds may be of two places
    if "fps" in frames:
        values["fps"] = frames["fps"]
    if not values.get(HEARD):
        values.pop(HEARD, None)
    options: dict[str, object] = {"mm_processor_kwargs": values} if values else {}
    return options | ({"media_io_kwargs": {"video": frames}} if frames else {})


def check_heard(body: JsonMap, graph: StageGraph) -> None:
    """Raise ApiError if the videos of a stage's body are to be heard, and cannot be."""
    if not body.get("mm_processor_kwargs", {}).get(HEARD):
        return
    place = f"mm_processor_kwargs.{HEARD}"
    if "text" not in graph.outputs or not KINDS[_entry_kind(graph)].hears_videos:
        raise invalid(place, "is not supported by this model: it does not hear videos")
    for path, part in _parts(body["messages"]):
        if part["type"] in SOUNDS:
            raise invalid(place, f"is not supported beside other sounds, as in {path}")


def media_of(body: JsonMap) -> list[Medium]:
    """Return every medium of a stage's body, and how its videos are watched."""
    frames = body.get("media_io_kwargs", {}).get("video", {})
    is_heard = bool(body.get("mm_processor_kwargs", {}).get(HEARD))
    watching = Watching(**frames, is_heard=is_heard)
    parts = _parts(body["messages"])
    return [Medium.of_part(part, path, watching) for path, part in parts if part["type"] != "text"]


def _entry_kind(graph: StageGraph) -> str:
    return graph.stages[graph.entry_of("text")].kind


def _check_order(name: str, least: int | None, most: int | None) -> None:
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_{name} {least} exceeds max_{name} {most}")


def _add(given: dict[str, Given], values: JsonMap, place: str) -> None:
    for name, value in values.items():
        known = given.setdefault(name, Given(value, f"{place}.{name}"))
        if known.value != value:
            problem = f"is {value}, but {known.place} is {known.value}: a request has one value"
            raise invalid(f"{place}.{name}", problem)


def _add_parts(given: dict[str, Given], messages: Sequence[Part]) -> None:
    """Adds the options of the parts, each of which agrees with the others or with the request."""
    of_parts: dict[str, Given] = {}
    parts = [(path, part) for path, part in _parts(messages) if part.get("type") in FIELDS]
    for path, part in parts:
        named = {name: part[name] for name in FIELDS[part["type"]] if part.get(name) is not None}
        if named:
            values = parse(PartOptions, named, path).model_dump(exclude_none=True)
            _add(of_parts, values, path)
    for name, one in of_parts.items():
        for path, part in parts:
            if name not in given and name in FIELDS[part["type"]] and part.get(name) is None:
                problem = f"must be {one.value} as {one.place}: a request has one value"
                raise invalid(f"{path}.{name}", problem)
        _add(given, {name: one.value}, one.place.removesuffix(f".{name}"))


def _parts(messages: Sequence[Part]) -> list[tuple[str, Json]]:
    """Every part of the messages that is an object, with its place."""
    return [
        (f"messages[{i}].content[{j}]", part)
        for i, message in enumerate(messages)
        if isinstance(message.get("content"), list)
        for j, part in enumerate(message["content"])
        if isinstance(part, dict)
    ]
