"""A text to be spoken as it is: checked by what the model takes, and sent to the stages."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from omnistage.server.common.errors import ApiError, fields_named, invalid
from omnistage.server.common.served import check_model
from omnistage.server.common.trace import current_trace
from omnistage.server.media.audio.contract import AudioEncoder
from omnistage.server.media.audio.encoder import RawEncoder, make_encoder
from omnistage.server.media.audio.encoding import encoded
from omnistage.server.media.audio.time_stretch import TimeStretch
from omnistage.server.runtime.readiness import check_ready
from omnistage.server.runtime.request import AudioOutput, GraphRequest, Outputs
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.chat.stage_params import checked_stage_params, stage_params_of
from omnistage.server.tasks.pieces import Answer, Piece, Usage, stamps_of
from omnistage.server.tasks.recordings import audio_of
from omnistage.server.tasks.service import Caller, Service
from omnistage.server.tasks.speech.choice import (
    PLAIN,
    VoiceChoice,
    check_instructions,
    check_task,
    chosen_language,
    chosen_voice,
)
from omnistage.server.tasks.speech.continuous import spoken
from omnistage.server.tasks.speech.requests import SpeechUsage, pieces_of_request, with_reference
from omnistage.server.tasks.speech.speech_fields import MAX_TEXT, SpeechRequest
from omnistage.server.tasks.speech.stored_voices import StoredVoices
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import generates_audio, reads_out
from omnistage.stages.messages.body import GivenText
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Request

OUTPUTS = ("text", "audio")  # of the text comes only how many tokens it has
POSITIONS_OF_CHARACTER = 8
MIN_PIECE = 16
USUAL_INSTRUCTIONS = 400  # characters


def outputs_of(graph: StageGraph) -> tuple[str, ...]:
    """Returns what a spoken text wants of a graph that speaks one; raises ApiError for another."""
    if not reads_out(graph):
        message = "This model does not speak a given text."
        if generates_audio(graph):
            message = "This model makes audio of a description: POST /v1/audio/generate."
        raise ApiError(400, message, code="unsupported_model")
    entry = graph.entry_of("audio")
    return tuple(
        output for output in OUTPUTS if output in graph.outputs and graph.entry_of(output) == entry
    )


def speech_of(runtime: Runtime) -> Speech:
    """Returns what the entry stage takes beside a text; raises ApiError while it does not say
    it.
    """
    outputs_of(runtime.graph)
    entry = runtime.fleet.one_of(runtime.graph.entry_of("audio"))
    check_ready(entry)
    return entry.record.speech or PLAIN


def takes_sound(runtime: Runtime) -> bool:
    """Returns whether a voice may be made from a sound, as far as is known."""
    if "audio" not in runtime.graph.outputs:
        return False
    speech = runtime.fleet.one_of(runtime.graph.entry_of("audio")).record.speech
    return speech is not None and speech.takes_sound


def speech_choice(asked: SpeechRequest, runtime: Runtime, voices: StoredVoices) -> VoiceChoice:
    """Whose voice is wanted; raises ApiError for this and all else that the model has not."""
    check_model(asked.model, runtime.graph.served_names)
    speech = speech_of(runtime)
    asked.check()
    check_task(asked.task_type, speech)
    if asked.return_codes and asked.stream_format != "sse":
        raise invalid("return_codes", "needs stream_format sse")
    check_instructions(asked.instructions, speech)
    chosen_language(asked.language, speech)
    called = asked.asked_voice
    called = replace(called, voice=runtime.graph.voice_called(called.voice))
    return chosen_voice(called, speech, runtime.fleet.voices, voices)


def speech_request(asked: SpeechRequest, runtime: Runtime, choice: VoiceChoice) -> GraphRequest:
    """The request as the stages get it, with a text of any length; raises ApiError.

    The sound that is spoken with is put in by `with_reference`, once it is there.
    """
    graph, outputs = runtime.graph, outputs_of(runtime.graph)
    path = set(graph.path(outputs))
    if "text" in outputs:  # what writes texts samples nothing of a given one
        path.remove(graph.entry_of("text"))
    given = checked_stage_params(asked.stage_params or {}, graph, path)
    return GraphRequest(
        id=f"speech-{uuid4().hex}",
        message=Request(
            GivenText(
                asked.input,
                asked.instructions or "",
                chosen_language(asked.language, speech_of(runtime)),
            ),
            list(outputs),
            speaker=choice.speaker,
            stage_params=stage_params_of(graph, path, given),
            seed=asked.seed,
            return_codes=bool(asked.return_codes),
        ),
    )


def max_text_of(runtime: Runtime, instructions: str | None) -> int:
    """How many characters one request may have.

    A stage that does not say it has so many positions for the instructions, the text and the codec
    frames that are made of it. Of Chinese, a character is up to one token, and spoken slowly three
    frames of 80 ms; digits and signs are spoken longer. So each has eight positions. Raises
    ApiError for instructions that leave none.
    """
    said = speech_of(runtime).max_text
    if said:  # the stage has set positions aside for usual instructions
        beyond = max(0, len(instructions or "") - USUAL_INSTRUCTIONS)
        return min(said, max(MIN_PIECE, said - beyond // POSITIONS_OF_CHARACTER))
    path = runtime.fleet.open_path(outputs_of(runtime.graph))
    entry = runtime.graph.entry_of("audio")
    lengths = [links[0].record.max_model_len for links in path if links[0].stage != entry]
    num_positions = min(filter(None, lengths), default=MAX_TEXT * POSITIONS_OF_CHARACTER)
    room = (num_positions - len(instructions or "")) // POSITIONS_OF_CHARACTER
    if room < MIN_PIECE:
        message = f"instructions: they leave no room for a text in {num_positions} positions."
        raise ApiError(400, message, param="instructions", code="context_length_exceeded")
    return room


def input_of(place: str) -> str:
    """Return the field that a place of the stages comes from: to them the text is a turn."""
    return "input" if place == "messages" else place


@dataclass(frozen=True, slots=True)
class RunningSpeech:
    """A text whose first piece was sent to be spoken; closing `outputs` cancels it."""

    request: GraphRequest
    outputs: Outputs


async def run_speech(service: Service, fields: SpeechRequest, caller: Caller) -> RunningSpeech:
    """Check a text and its voice, load the voice's audio and send the text; raises ApiError."""
    runtime, voices = service.runtime, service.voices
    choice = speech_choice(fields, runtime, voices)
    request = speech_request(fields, runtime, choice)
    max_text = max_text_of(runtime, fields.instructions)
    ticket = caller.until.enter_context(runtime.flights.admit(request.message.outputs))
    if choice.has_sound:
        loading = choice.reference(voices, service.media, caller.until)
        request = with_reference(request, await caller.wait(loading))
    requests = pieces_of_request(request, max_text)
    with fields_named(input_of):
        first = ticket.run(requests[0])
    return RunningSpeech(request, _named(spoken(ticket, requests, first)))


async def _named(outputs: Outputs) -> Outputs:
    with fields_named(input_of):
        async with aclosing(outputs):
            async for output in outputs:
                yield output


async def answer_speech(
    service: Service, fields: SpeechRequest, caller: Caller
) -> AsyncGenerator[Piece, None]:
    """Yield the audio as it is spoken, and the `Answer` last; raises ApiError."""
    running = await run_speech(service, fields, caller)
    usage = SpeechUsage()
    samples: SampleFormat | None = None
    pcm = bytearray()
    outputs = encoded(running.outputs, partial(_at_speed, fields.speed or 1.0))
    async with aclosing(outputs):
        async for output in outputs:
            usage.add(output)
            if isinstance(output, AudioOutput):
                samples = output.samples
                pcm += output.data
                if output.data:
                    yield audio_of(output.data, samples)
    yield Answer(
        running.request.id,
        audio=audio_of(bytes(pcm), samples) if samples is not None else None,
        usage=Usage(usage.num_tokens, usage.num_frames),
        timeline=stamps_of(current_trace().timeline.to_list()),
    )


def _at_speed(speed: float, samples: SampleFormat) -> AudioEncoder:
    """Return what makes samples that play at `speed` times their pace."""
    plain = RawEncoder(samples, has_header=False, is_streamed=True)
    return plain if speed == 1.0 else TimeStretch(plain, speed, samples)


def speech_encoder(form: str, speed: float, samples: SampleFormat) -> AudioEncoder:
    """Returns what encodes samples to a stream that is heard at `speed` times their pace."""
    encoder = make_encoder(form, is_streamed=True, samples=samples)
    return encoder if speed == 1.0 else TimeStretch(encoder, speed, samples)
