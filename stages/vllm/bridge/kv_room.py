"""Whether an engine that takes late inputs has room for all of its requests."""


def refuse_preemption(
    num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int
) -> None:
    """Refuse an engine whose KV cache cannot hold every request at full length.

    A preempted request would have to be prefilled again with codes that are no longer known.
    `num_blocks`: vLLM's first one among them, which holds nothing.
    """
    needed = max_num_seqs * -(-max_model_len // block_size)
    if num_blocks - 1 < needed:
        held = (num_blocks - 1) * block_size
        raise ValueError(
            f"the KV cache holds {held} tokens; max_num_seqs x max_model_len needs "
            f"{needed * block_size}: raise kv_cache_memory_bytes or gpu_memory_utilization, "
            "or lower one of the two"
        )
