"""Videos and generated audio, from the fields of /v1/videos/sync and /v1/audio/generate."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing
from typing import TypeVar

from omnistage.server.common.errors import unsupported
from omnistage.server.common.fields import RequestFields, parse
from omnistage.server.offline.content import given_as
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.tasks.audio_task import MEDIA, GeneratedAudioRequest, answer_audio
from omnistage.server.tasks.pieces import Piece
from omnistage.server.tasks.service import Caller, LocalCaller, Service
from omnistage.server.tasks.video_task import answer_video
from omnistage.server.tasks.videos.media import FIELDS, MediaField, Source, take_media
from omnistage.server.tasks.videos.schema import VideoRequest

OF_FILES = ("response_format",)

F = TypeVar("F", bound=RequestFields)
Answering = Callable[[Service, F, Caller, Sequence[Source]], AsyncGenerator[Piece, None]]


def video(engine: Engine, fields: Mapping[str, object]) -> Pieces:
    """Make a video of words, or of words and media."""
    return _answered(engine, VideoRequest, FIELDS, fields, answer_video)


def generated_audio(engine: Engine, fields: Mapping[str, object]) -> Pieces:
    """Make sounds or music of words, or of words and audio."""
    return _answered(engine, GeneratedAudioRequest, MEDIA, fields, answer_audio, OF_FILES)


async def _answered(
    engine: Engine,
    model: type[F],
    media: Mapping[str, MediaField],
    fields: Mapping[str, object],
    answer: Answering[F],
    refused: Collection[str] = (),
) -> Pieces:
    for name in refused:
        if fields.get(name) is not None:
            raise unsupported(name, f"{name}: audio is samples, so it")
    sources = await asyncio.to_thread(_sources_of, fields, media)
    # A boolean in a medium's place is no medium: whether a video is to have sound.
    plain = {
        name: one for name, one in fields.items() if name not in media or isinstance(one, bool)
    }
    asked = parse(model, await said(plain))
    warn_of(asked.unknown)
    with ExitStack() as until:
        made = answer(engine.service, asked, LocalCaller(until), sources)
        async with aclosing(made) as pieces:
            async for piece in pieces:
                yield piece


def _sources_of(fields: Mapping[str, object], media: Mapping[str, MediaField]) -> list[Source]:
    """Return the media of a request, whose files are read; raises ApiError."""
    given = {name: fields.get(name) for name in media}
    body = {name: _files_of(one, media[name], name) for name, one in given.items()}
    return take_media(body, media)


def _files_of(value: object, field: MediaField, name: str) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [given_as(one, field.kind, f"{name}[{i}]") for i, one in enumerate(value)]
    return given_as(value, field.kind, name)
