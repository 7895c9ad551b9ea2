"""What was said in an audio file: a chat about it."""

from omnistage.server.chat.audio_history import AudioHistory
from omnistage.server.chat.schema import ChatRequest
from omnistage.server.chat.translate import Translator
from omnistage.server.errors import ApiError
from omnistage.server.runtime.request import Request
from omnistage.server.tasks.transcript import Transcript
from omnistage.server.tasks.transcription_fields import chat_messages
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph

# Places in the chat, and the fields that what is there comes from.
FIELDS = {"messages[0].content[1]": "prompt", "messages": "file"}


def check_hears(graph: StageGraph) -> None:
    """Raise ApiError for a graph whose entry stage takes no audio."""
    if "text" not in graph.outputs or not KINDS[graph.stages[graph.entry_of("text")].kind].hears:
        raise ApiError(400, "This model does not hear.", code="unsupported_model")


def transcription_chat(transcript: Transcript, graph: StageGraph) -> Request:
    """The chat; takes a while: the audio becomes base64. Raises ApiError."""
    asked = transcript.asked
    chat = ChatRequest(
        messages=chat_messages(asked),
        temperature=asked.temperature,
        max_completion_tokens=asked.max_completion_tokens,
        logprobs=asked.response_format == "verbose_json" or transcript.has_logprobs,
    )
    return Translator(graph, (), AudioHistory()).request(chat)


def about_fields(error: ApiError) -> ApiError:
    """The error with the field to blame instead of a place in the chat."""
    for place, name in FIELDS.items():
        if error.param is not None and error.param.startswith(place):
            error.message = error.message.replace(error.param, name)
            error.param = name
    return error
