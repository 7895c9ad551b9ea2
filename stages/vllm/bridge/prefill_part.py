"""A part of a prompt that runs before the rest of its inputs has come."""

from dataclasses import dataclass

from vllm.config import SchedulerConfig

SHARE_OF_A_STEP = 8  # a part has at least this share of the most tokens that a step takes


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """All that one step may compute: so many tokens, as the request's inputs have come for them."""

    request_id: str
    num_tokens: int


def least_part(config: SchedulerConfig, wanted: int | None) -> int:
    """The fewest tokens of a prompt that run before the rest has come; 0: prompts run whole.

    Steps with few tokens take nearly as long as longer ones, and the streams that run wait for
    each. Without chunked prefill vLLM runs no parts.
    """
    if not config.enable_chunked_prefill:
        return 0
    return config.max_num_batched_tokens // SHARE_OF_A_STEP if wanted is None else wanted
