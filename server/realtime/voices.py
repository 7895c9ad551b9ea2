"""The voice of a session: OpenAI's names stand for the model's own where it has none so called."""

from omnistage.server.chat.translate import known_speaker
from omnistage.server.runtime.runtime import Runtime

OPENAI_VOICES = frozenset(
    {
        "alloy",
        "ash",
        "ballad",
        "cedar",
        "coral",
        "echo",
        "fable",
        "marin",
        "nova",
        "onyx",
        "sage",
        "shimmer",
        "verse",
    }
)


def speaker_of(voice: str, runtime: Runtime, place: str) -> str | None:
    """Return the graph's speaker for a voice, None for its default; ApiError for an unknown one."""
    speakers = runtime.fleet.voices
    called = runtime.graph.voice_called(voice)
    has_it = called is not None and called.lower() in {name.lower() for name in speakers}
    if not has_it and voice.lower() in OPENAI_VOICES:
        return None
    return known_speaker(called, speakers, place)
