"""The words of an audio file: by a transcriber if the graph has one, else by a chat about it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

from omnistage.server.common.errors import ApiError, fields_named
from omnistage.server.common.served import check_model
from omnistage.server.common.trace import current_trace
from omnistage.server.media.incoming import Incoming
from omnistage.server.media.medium import Medium
from omnistage.server.runtime.request import GraphRequest, Outputs, TextOutput
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import translate_chat
from omnistage.server.tasks.pieces import Answer, Choice, Piece, Text, Usage, stamps_of
from omnistage.server.tasks.service import Caller, Service, send
from omnistage.server.tasks.transcripts.transcript import Body, Transcript
from omnistage.server.tasks.transcripts.transcription_fields import AudioRequest
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import TRANSCRIPT, takes_speech
from omnistage.stages.messages.body import Transcribe
from omnistage.stages.messages.to_stage import Request

WORDS = "messages[0].content[1]"  # behind the audio


def check_hears(graph: StageGraph) -> None:
    """Raise ApiError for a graph of which no model takes audio."""
    if not takes_speech(graph):
        raise ApiError(400, "This model does not hear.", code="unsupported_model")


@dataclass(frozen=True, slots=True)
class RunningTranscript:
    """A transcript whose audio is on its way to the stages."""

    request: GraphRequest
    transcript: Transcript
    outputs: Outputs

    async def events(self) -> AsyncGenerator[Body, None]:
        """Yield an event for each piece of the text as it comes; raises ApiError."""
        with fields_named(_field_of):
            async with aclosing(self.outputs) as outputs:
                async for output in outputs:
                    assert isinstance(output, TextOutput)
                    event = self.transcript.add(output.chunk)
                    if event is not None:
                        yield event


async def answer_transcription(
    service: Service, fields: AudioRequest, caller: Caller
) -> AsyncGenerator[Piece, None]:
    """Yield the text as it comes, and the `Answer` last; raises ApiError."""
    running = await run_transcription(service, fields, caller)
    async with aclosing(running.events()) as events:
        async for event in events:
            yield Text(event["delta"])
    written = running.transcript
    yield Answer(
        running.request.id,
        choices=(Choice(written.text),),
        usage=Usage.of(written.done["usage"]),
        timeline=stamps_of(current_trace().timeline.to_list()),
    )


async def run_transcription(
    service: Service, fields: AudioRequest, caller: Caller
) -> RunningTranscript:
    """Ask the model to write down checked fields' audio; raises ApiError."""
    graph = service.runtime.graph
    check_model(fields.model, graph.served_names)
    transcript = Transcript(fields)
    audio = Medium("file", {"type": "audio_url", "audio_url": {}}, data=fields.file)
    with fields_named(_field_of):
        if TRANSCRIPT in graph.outputs:
            request = _for_transcriber(transcript)
        else:
            request = translate_chat(service, _chat_of(transcript)).request
            request.message.fields["messages"][0]["content"].insert(0, audio.part)
        request, outputs = await send(service, request, caller, [audio])
    assert isinstance(request.media, Incoming), "its audio was loaded"
    transcript.media = request.media
    return RunningTranscript(request, transcript, outputs)


def _for_transcriber(transcript: Transcript) -> GraphRequest:
    """Return the request of a model that transcribes, without the audio."""
    fields = transcript.asked
    body = Transcribe(
        language=fields.only_language,
        prompt=fields.context,
        to_english=fields.task == "translate",
        temperature=fields.temperature,
        max_tokens=fields.max_completion_tokens,
        logprobs=transcript.needs_logprobs,
    )
    return GraphRequest(f"transcript-{uuid4().hex}", Request(body, [TRANSCRIPT]))


def _chat_of(transcript: Transcript) -> ChatRequest:
    """Return the question as one turn, without the audio."""
    fields = transcript.asked
    words = [{"type": "text", "text": fields.instruction}]
    return ChatRequest(
        messages=[{"role": "user", "content": words}],
        temperature=fields.temperature,
        max_completion_tokens=fields.max_completion_tokens,
        logprobs=transcript.needs_logprobs,
    )


def _field_of(place: str) -> str:
    """Return the field that a place in the chat comes from: the audio's part, or the words'."""
    if not place.startswith("messages"):
        return place
    return "prompt" if place.startswith(WORDS) else "file"
