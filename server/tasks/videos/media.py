"""The media that a request for a video or audio names: their fields, and their files."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from omnistage.server.common.errors import ApiError, invalid, unsupported
from omnistage.server.media.given import GivenFile, GivenMedia, Kind, read_given
from omnistage.server.media.images import File
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import checked_part
from omnistage.stages.messages.to_gateway import Reading

MAX_REFERENCES = 16


@dataclass(frozen=True, slots=True)
class MediaField:
    """A field of a request that has a medium, or several: what stages call it, and its kind."""

    sent_as: str
    kind: Kind
    max_files: int = 1

    @property
    def part(self) -> str:
        """Returns the type of a chat's part with such a medium."""
        return {"video": "video_url", "audio": "audio_url"}.get(self.kind, "image_url")


FIELDS: Mapping[str, MediaField] = {
    "input_reference": MediaField("image", "image", MAX_REFERENCES),
    "last_image": MediaField("last_image", "image"),
    "reference_image": MediaField("reference_image", "image", MAX_REFERENCES),
    "video": MediaField("video", "video"),
    "control_video": MediaField("control_video", "video"),
    "face_video": MediaField("face_video", "video"),
    "mask": MediaField("mask", "mask"),
    "audio": MediaField("audio", "audio"),
    "audio_reference": MediaField("audio_reference", "audio", MAX_REFERENCES),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A medium of a request as it came: a file, or where it is."""

    field: str  # what stages call it
    kind: Kind
    source: File | Medium


def take_media(body: dict[str, Any], fields: Mapping[str, MediaField] = FIELDS) -> list[Source]:
    """Take the media out of a body; raises ApiError for what is none.

    Each is a file's bytes, a URL, or an object with `image_url`, `video_url` or `audio_url`. A
    boolean `audio` stays: it says whether the video is to have sound.
    """
    sources = []
    for name, field in fields.items():
        given = body.get(name)
        if given is None or isinstance(given, bool):
            continue
        del body[name]
        several = given if isinstance(given, list) else [given]
        if not 1 <= len(several) <= field.max_files:
            allowed = f"must be 1 to {field.max_files}" if field.max_files > 1 else "must be one"
            raise invalid(name, f"{allowed}, not {len(several)}")
        for index, one in enumerate(several):
            place = f"{name}[{index}]" if isinstance(given, list) else name
            sources.append(Source(field.sent_as, field.kind, _source(one, field.part, place)))
    return sources


def _source(given: Any, part: str, place: str) -> File | Medium:
    if isinstance(given, bytes):
        return File(place, given)
    if isinstance(given, dict):
        if given.get("file_id") is not None:
            raise unsupported(f"{place}.file_id")
        if part not in given:
            raise invalid(place, f"must be a file, a URL, or an object with {part}")
        given = given[part]
    return Medium.of_part(checked_part({"type": part, part: given}, place), place)


def check_places(fields: Collection[str], reading: Reading) -> None:
    """Raise ApiError for media that the stage's pipeline has no place for, for too many of a field,
    and for none at all where it makes nothing of words alone.

    `fields`: of the media, each, as stages call them.
    """
    if reading.fields is None:
        return
    if reading.needed and not fields:
        raise invalid(named(reading.needed[0]), "is missing: this model makes nothing without it")
    for field in fields:
        if field not in reading.fields:
            takes = ", ".join(map(named, reading.fields)) or "words alone"
            message = f"This model has no place for {named(field)}; it takes {takes}."
            raise ApiError(400, message, param=named(field), code="unsupported_model")
    for field, number in Counter(fields).items():
        most = reading.most.get(field, number)
        if number > most:
            message = f"This model takes at most {most} of {named(field)}; there are {number}."
            raise ApiError(400, message, param=named(field), code="invalid_value")


def named(field: str) -> str:
    """Return what clients call a medium that stages call so."""
    return next((name for name, one in FIELDS.items() if one.sent_as == field), field)


async def fetched(sources: Sequence[Source], media: MediaLoader) -> list[GivenFile]:
    """Return the media as files, fetched if they are elsewhere; raises ApiError."""
    named = [one.source for one in sources if isinstance(one.source, Medium)]
    files = iter(await media.files_of(named))
    return [
        GivenFile(one.field, one.kind, one.source if isinstance(one.source, File) else next(files))
        for one in sources
    ]


async def given_media(
    sources: Sequence[Source], media: MediaLoader, until: ExitStack
) -> GivenMedia:
    """Fetch and decode the media of a request; the room that they take is kept until `until` ends.

    Raises ApiError.
    """
    return await read_given(await fetched(sources, media), media.room, until)
