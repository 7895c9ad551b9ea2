"""What an engine answers before it is ready, so that no request waits for a compiler."""

from vllm.config import VllmConfig
from vllm.platforms import current_platform

# vLLM's kernels for experts are tuned for these numbers of tokens and compiled for each at its
# first use. Its CUDA graphs have seen all smaller ones.
TUNED_LENGTHS = (512, 1024, 1536, 2048, 3072, 4096)
ODD = 3  # Triton compiles anew for a length that 16 does not divide
# vLLM samples so many requests and more with a kernel of its own; 16 divides the second.
SAMPLED_TOGETHER = (8, 16)
FILTERS: tuple[dict[str, float], ...] = ({"top_k": 50}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.8})


def warm_up_lengths(config: VllmConfig) -> list[int]:
    """Prompt lengths, each a step of its own, that together make a GPU compile all it will need."""
    if not current_platform.is_cuda_alike():
        return []
    most = min(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)
    fitting = [length for length in TUNED_LENGTHS if length < most - 1]
    return sorted(length - odd for length in [*fitting, most - 2] for odd in (0, ODD))


def warm_up_samplings(config: VllmConfig) -> list[tuple[int, dict[str, float]]]:
    """Numbers of requests to sample at once, and how, that make a GPU compile all it will need."""
    if not current_platform.is_cuda_alike():
        return []
    most = config.scheduler_config.max_num_seqs
    return [(count, keep) for count in SAMPLED_TOGETHER if count <= most for keep in FILTERS]
