"""Which KV caches are too small for an engine whose requests cannot be prefilled again."""

import pytest

from omnistage.stages.vllm.bridge.connector import refuse_preemption


def test_every_request_fits_at_full_length_beside_the_block_that_holds_nothing() -> None:
    refuse_preemption(num_blocks=4 * 7 + 1, block_size=16, max_num_seqs=4, max_model_len=100)
    with pytest.raises(
        ValueError, match="holds 432 tokens; max_num_seqs x max_model_len needs 448"
    ):
        refuse_preemption(num_blocks=4 * 7, block_size=16, max_num_seqs=4, max_model_len=100)
