"""Fields of a chat or text completion that have no effect here, or that are refused.

Those that have one are in schema.py. docs/api.md lists all of them; a test compares.
"""

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
