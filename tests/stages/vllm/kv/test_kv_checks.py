"""Engines whose keys and values cannot leave are refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.kv.kv_checks import refuse_unsendable_kv

MODEL = {
    "use_mla": False,
    "is_hybrid": False,
    "is_attention_free": False,
    "is_encoder_decoder": False,
    "attention_chunk_size": None,
}


def config(
    cache_dtype: str = "auto",
    window: int | None = None,
    drafts: object = None,
    model: dict[str, object] | None = None,
    **parallel: int,
) -> Any:
    """What is read of vLLM's."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        parallel_config=SimpleNamespace(**{"tensor_parallel_size": 1, **parallel}),
        speculative_config=drafts,
        model_config=SimpleNamespace(
            **{**MODEL, **(model or {})}, get_sliding_window=lambda: window
        ),
    )


def test_one_kind_of_cache_in_its_own_dtype_may_leave() -> None:
    for dtype in ("auto", "bfloat16", "float16"):
        refuse_unsendable_kv(config(dtype, data_parallel_size=2))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (config("fp8"), "kv_cache_dtype fp8: .* not quantized ones; allowed: auto, bfloat16"),
        (config("fp8_e5m2"), "kv_cache_dtype fp8_e5m2"),
        (config("nvfp4"), "kv_cache_dtype nvfp4"),
        (config(tensor_parallel_size=2), "tensor_parallel_size 2: .* one process; allowed: 1"),
        (config(pipeline_parallel_size=2), "pipeline_parallel_size 2"),
        (config(decode_context_parallel_size=2), "decode_context_parallel_size 2"),
        (config(prefill_context_parallel_size=4), "prefill_context_parallel_size 4"),
        (config(drafts=object()), "speculative_config"),
        (config(model={"use_mla": True}), "latent attention"),
        (config(model={"is_hybrid": True}), "several kinds of layers"),
        (config(model={"is_attention_free": True}), "no attention"),
        (config(model={"is_encoder_decoder": True}), "an encoder"),
        (config(model={"attention_chunk_size": 8192}), "attention to chunks"),
        (config(window=4096), "a sliding window"),
    ],
)
def test_what_cannot_leave_is_refused_by_name(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        refuse_unsendable_kv(given)
