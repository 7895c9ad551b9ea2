"""Every top-level field of a chat or text completion, and what the server does with it.

docs/api.md lists the same; a test compares the two.
"""

from collections.abc import Mapping, Set
from typing import Any

from pydantic import BaseModel

from omnistage.server.chat.messages import unknown_keys
from omnistage.server.chat.schema import (
    AudioOptions,
    ChatRequest,
    CompletionRequest,
    Sampling,
    StreamOptions,
)
from omnistage.server.errors import unsupported

DONE = frozenset(ChatRequest.model_fields)

# OpenAI's, meant for its own service: accepted so that clients which always send them work.
IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
        "web_search_options",
    }
)

# Known, and what they ask for is not done. false, null and what is empty ask for nothing.
REFUSED = frozenset(
    {
        # OpenAI's, replaced by tools and tool_choice
        "function_call",
        "functions",
        # vLLM's: they reach into the engine or the media loaders, break the shape of a spoken
        # turn, or a stream cannot carry their result
        "add_generation_prompt",
        "add_special_tokens",
        "best_of",
        "chat_template",
        "continue_final_message",
        "documents",
        "ec_transfer_params",
        "echo",
        "kv_transfer_params",
        "length_penalty",
        "logprob_token_ids",
        "media_io_kwargs",
        "mm_payload",
        "priority",
        "prompt_logprobs",
        "repetition_detection",
        "return_mm_kwargs",
        "return_prompt_text",
        "return_token_offsets",
        "return_tokens_as_token_ids",
        "routed_experts_prompt_start",
        "session_id",
        "stream_interval",
        "thinking_token_budget",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_beam_search",
        "vllm_xargs",
        "watermarking",
        # SGLang-Omni's: parts of a message say where a medium belongs
        "audios",
        "images",
        "videos",
    }
)

# Of POST /v1/completions; what is chat's alone would have no effect there.
COMPLETION_DONE = frozenset(CompletionRequest.model_fields)
COMPLETION_REFUSED = (DONE | REFUSED | {"suffix"}) - COMPLETION_DONE

# Of chat_template_kwargs: these are not the template's but those of the call that renders it.
RENDERING = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

NESTED = {"audio": AudioOptions, "stream_options": StreamOptions}


def check_refused(extra: Mapping[str, Any], refused: Set[str] = REFUSED) -> None:
    """Raise ApiError for the first known field that asks for what is not done."""
    for name in sorted(refused & extra.keys()):
        if extra[name]:
            raise unsupported(name)


def check_template_kwargs(given: Mapping[str, Any] | None) -> None:
    """Raise ApiError for what is no variable of a chat template."""
    for name in sorted(RENDERING & (given or {}).keys()):
        raise unsupported(f"chat_template_kwargs.{name}")


def unknown_fields(chat: ChatRequest) -> list[str]:
    """What nobody here knows of a checked request, and so has no effect."""
    return unknown_names(chat, REFUSED) + unknown_keys(chat.messages)


def unknown_names(asked: Sampling, refused: Set[str]) -> list[str]:
    """Fields that nobody here knows, at the top and in options."""
    unknown = sorted((asked.model_extra or {}).keys() - IGNORED - refused)
    for name in NESTED:
        options = getattr(asked, name, None)
        if isinstance(options, BaseModel):  # an extra field of the same name is what it is
            unknown += [f"{name}.{key}" for key in sorted(options.model_extra or {})]
    return unknown
