"""The tokens of a response, from those of its chat."""

from omnistage.server.tasks.chat.usage import usage_of
from omnistage.stage_configs.json_types import Json, JsonMap

KINDS = ("text_tokens", "audio_tokens", "image_tokens")


def response_usage(usage: JsonMap, num_frames: int) -> Json:
    """Return a response's usage: zeros for a chat that did not run; a codec frame is a token.

    Which tokens the cache had is not known by kinds: they are counted as text as far as there is
    text, then as audio and as images.
    """
    chat = usage_of(usage, num_frames)
    given, made = chat["prompt_tokens_details"], chat["completion_tokens_details"]
    tokens_in = {kind: given.get(kind, 0) for kind in KINDS}
    left, cached = given["cached_tokens"], {}
    for kind in KINDS:
        cached[kind] = min(left, tokens_in[kind])
        left -= cached[kind]
    details = {"cached_tokens": given["cached_tokens"], **tokens_in}
    return {
        "total_tokens": chat["total_tokens"],
        "input_tokens": chat["prompt_tokens"],
        "output_tokens": chat["completion_tokens"],
        "input_token_details": {**details, "cached_tokens_details": cached},
        "output_token_details": {
            "text_tokens": made.get("text_tokens", 0),
            "audio_tokens": made["audio_tokens"],
        },
    }
