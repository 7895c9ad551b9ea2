"""Refuses requests for a model, an output or a voice that the server does not have."""

from collections.abc import Collection, Sequence

from omnistage.server.common.errors import ApiError, invalid

ENDPOINTS = {
    "audio": "/v1/audio/speech, or /v1/audio/generate for sounds and music",
    "embedding": "/v1/embeddings",
    "transcript": "/v1/audio/transcriptions",
    "image": '/v1/images/generations, or modalities ["image"] in a chat',
    "video": "/v1/videos",
}
"""Where a graph without text is called, per output."""
DEFAULT_VOICE = "default"  # the model's own, for clients that must name one


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    """The refusal of a model that is not served."""
    names = ", ".join(map(repr, served))
    message = f"The model {name!r} does not exist; this server has {names}."
    return ApiError(404, message, param="model", code="model_not_found")


def check_model(name: str | None, served: tuple[str, ...], adapters: Collection[str] = ()) -> None:
    """Raise ApiError for a request that calls the model by none of its names, and no adapter."""
    if name is not None and name not in served and name not in adapters:
        raise model_not_found(name, served)


def adapter_of(name: str | None, served: tuple[str, ...]) -> dict[str, str]:
    """Returns what the body of the entry stage has of a checked name: that of an adapter, if it is
    one.
    """
    return {} if name is None or name in served else {"model": name}


def made_by(outputs: Collection[str]) -> str:
    """Return the outputs of a graph, and how to call one that answers no chats with text."""
    makes = ", ".join(sorted(outputs))
    if "text" in outputs:
        return makes
    return f"{makes}: use {'; '.join(ENDPOINTS[name] for name in sorted(outputs))}"


def check_makes(output: str, outputs: Collection[str], called: str) -> None:
    """Raise ApiError if a graph with these outputs makes none that is `called` so."""
    if output not in outputs:
        message = f"This model makes no {called}; it makes {made_by(outputs)}."
        raise ApiError(400, message, code="unsupported_model")


def known_speaker(voice: str | None, speakers: Sequence[str], param: str) -> str | None:
    """Returns the speaker with this name in any case, None for the model's own; raises ApiError."""
    if voice is None:
        return None
    for speaker in speakers:
        if speaker.lower() == voice.lower():
            return speaker
    if voice.lower() == DEFAULT_VOICE:
        return None
    if not speakers:  # stages still load, or have no names to check
        return voice
    raise invalid(param, f"{voice!r} is unknown; allowed: {', '.join([*speakers, DEFAULT_VOICE])}")
