"""Refuses engines whose keys and values cannot leave, before anything of them loads."""

from vllm.config import VllmConfig

PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
)
CACHE_DTYPES = ("auto", "bfloat16", "float16", "float32")


def refuse_unsendable_kv(config: VllmConfig) -> None:
    """Raise ValueError for a model or engine arguments whose keys and values cannot leave."""
    dtype = config.cache_config.cache_dtype
    if dtype not in CACHE_DTYPES:
        allowed = ", ".join(CACHE_DTYPES)
        raise ValueError(
            f"kv_cache_dtype {dtype}: the edge of this stage carries keys and values as they are "
            f"computed, not quantized ones; allowed: {allowed}"
        )
    for name in PARALLEL:
        size = getattr(config.parallel_config, name, 1)
        if size > 1:
            raise ValueError(
                f"{name} {size}: the edge of this stage carries keys and values, which leave from "
                "one process; allowed: 1"
            )
    if config.speculative_config is not None:
        raise ValueError("speculative_config: not in a stage whose edge carries keys and values")
    model = config.model_config
    kinds = {
        "latent attention (MLA)": model.use_mla,
        "several kinds of layers": model.is_hybrid,
        "no attention": model.is_attention_free,
        "an encoder beside it": model.is_encoder_decoder,
        "a sliding window": model.get_sliding_window() is not None,
        "attention to chunks": bool(getattr(model, "attention_chunk_size", None)),
    }
    found = next((kind for kind, is_so in kinds.items() if is_so), None)
    if found is not None:
        raise ValueError(
            f"the model has {found}; an edge of keys and values needs one kind of KV cache, with "
            "the keys and values of each token"
        )
