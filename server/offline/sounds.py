"""Speech and transcripts, from the fields of /v1/audio to the pieces of their answers."""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from omnistage.server.audio.contract import AudioEncoder
from omnistage.server.audio.encoder import RawEncoder
from omnistage.server.audio.encoding import encoded
from omnistage.server.audio.time_stretch import TimeStretch
from omnistage.server.errors import ApiError
from omnistage.server.http.fields import parse
from omnistage.server.http.served import check_model
from omnistage.server.media.medium import media_of
from omnistage.server.offline.content import file_of
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.offline.outputs import Answer, Choice, Text, Usage, audio_of, stamps_of
from omnistage.server.runtime.request import AudioOutput, TextOutput
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.speech.continuous import spoken
from omnistage.server.speech.requests import SpeechUsage, pieces_of_request, with_reference
from omnistage.server.tasks.speech_fields import SpeechRequest
from omnistage.server.tasks.speech_request import (
    about_input,
    max_text_of,
    speech_choice,
    speech_request,
)
from omnistage.server.tasks.transcript import Transcript
from omnistage.server.tasks.transcription import about_fields, check_hears, transcription_chat
from omnistage.server.tasks.transcription_fields import AudioRequest, request_of
from omnistage.server.trace import current_trace


async def speech(engine: Engine, fields: Mapping[str, Any]) -> Pieces:
    """Speak a text as it is."""
    asked = parse(SpeechRequest, await said(fields))
    choice = speech_choice(asked, engine.runtime, engine.voices)
    request = speech_request(asked, engine.runtime, choice)
    warn_of(asked.unknown)
    usage = SpeechUsage()
    samples: SampleFormat | None = None
    pcm = bytearray()
    try:
        with engine.runtime.flights.admit(request.outputs) as ticket, ExitStack() as until:
            reference = await choice.reference(engine.voices, engine.media, until)
            request = with_reference(request, reference)
            pieces = pieces_of_request(request, max_text_of(engine.runtime, asked.instructions))
            outputs = encoded(spoken(ticket, pieces), partial(at_speed, asked.speed or 1.0))
            async with aclosing(outputs):
                async for output in outputs:
                    usage.add(output)
                    if isinstance(output, AudioOutput):
                        samples = output.samples
                        pcm += output.data
                        if output.data:
                            yield audio_of(output.data, samples)
    except ApiError as error:
        raise about_input(error) from None
    yield Answer(
        request.id,
        audio=audio_of(bytes(pcm), samples) if samples is not None else None,
        usage=Usage(usage.num_tokens, usage.num_frames),
        timeline=stamps_of(current_trace().timeline.to_list()),
    )


def at_speed(speed: float, samples: SampleFormat) -> AudioEncoder:
    """What makes samples that are heard at `speed` times their pace."""
    plain = RawEncoder(samples, has_header=False, is_streamed=True)
    return plain if speed == 1.0 else TimeStretch(plain, speed, samples)


async def transcript(
    engine: Engine, kind: type[AudioRequest], sound: Any, fields: Mapping[str, Any]
) -> Pieces:
    """Write down what was said, in its own language or in English."""
    check_hears(engine.graph)
    data = await asyncio.to_thread(file_of, sound, "audio", "file")
    asked = request_of(kind, {**await said(fields), "file": data})
    check_model(asked.model, engine.graph.served_names)
    warn_of(asked.unknown)
    written = Transcript(asked)
    try:
        request = await asyncio.to_thread(transcription_chat, written, engine.graph)
        with engine.runtime.flights.admit(request.outputs) as ticket:
            written.media = await engine.media.load_all(list(media_of(request.body)))
            request = replace(request, media=written.media)
            async with aclosing(ticket.run(request)) as outputs:
                async for output in outputs:
                    assert isinstance(output, TextOutput)
                    event = written.add(output.chunk)
                    if event is not None:
                        yield Text(event["delta"])
    except ApiError as error:
        raise about_fields(error) from None
    yield Answer(
        request.id,
        choices=(Choice(written.text),),
        usage=Usage.of(written.done["usage"]),
        timeline=stamps_of(current_trace().timeline.to_list()),
    )
