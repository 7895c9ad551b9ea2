"""Fields of a chat or text completion that have no effect here, or that are refused.

Those that have one are in schema.py. docs/api.md lists all of them; a test compares.
"""

from omnistage.server.common.fields import Refused

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

# Known, and what they ask for is not done. Beside each what asks for nothing, as null does: the
# field's default, and a list or an object with nothing in it.
REFUSED: Refused = {
    # OpenAI's, replaced by tools and tool_choice
    "function_call": ("none",),
    "functions": ([],),
    # vLLM's: they reach into the engine or the media loaders, break the shape of a spoken
    # turn, or a stream cannot carry their result
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "best_of": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "ec_transfer_params": ({},),
    "echo": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1.0,),
    "logprob_token_ids": (),
    "mm_payload": ("tensors",),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "return_mm_kwargs": (False,),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,),
    "session_id": (),
    "stream_interval": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    # SGLang-Omni's: parts of a message say where a medium belongs
    "audios": ([],),
    "images": ([],),
    "videos": ([],),
}

# A chat's own fields: refused where what they ask for has no place, unless it is a chat's default.
OF_CHATS: Refused = {
    "audio": (),
    "chat_template_kwargs": ({},),
    "include_reasoning": (True,),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "media_io_kwargs": ({},),
    "messages": (),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "reasoning_effort": (),
    "return_codes": (False,),
    "return_timeline": (False,),
    "stage_params": ({},),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}

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
        "model_config",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
