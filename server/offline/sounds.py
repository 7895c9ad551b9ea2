"""Speech and transcripts, from the fields of /v1/audio."""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, aclosing

from omnistage.server.common.fields import parse
from omnistage.server.offline.content import file_of
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.tasks.service import LocalCaller
from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.server.tasks.speech_task import answer_speech
from omnistage.server.tasks.transcription import answer_transcription, check_hears
from omnistage.server.tasks.transcripts.transcription_fields import AudioRequest, request_of


async def speech(engine: Engine, fields: Mapping[str, object]) -> Pieces:
    """Speak a text as it is."""
    asked = parse(SpeechRequest, await said(fields))
    warn_of(asked.unknown)
    with ExitStack() as until:
        async with aclosing(answer_speech(engine.service, asked, LocalCaller(until))) as pieces:
            async for piece in pieces:
                yield piece


async def transcript(
    engine: Engine, kind: type[AudioRequest], sound: object, fields: Mapping[str, object]
) -> Pieces:
    """Write down what was said, in its own language or in English."""
    check_hears(engine.graph)
    data = await asyncio.to_thread(file_of, sound, "audio", "file")
    asked = request_of(kind, {**await said(fields), "file": data})
    warn_of(asked.unknown)
    with ExitStack() as until:
        caller = LocalCaller(until)
        async with aclosing(answer_transcription(engine.service, asked, caller)) as pieces:
            async for piece in pieces:
                yield piece
