"""What an engine answers before it is ready."""

from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm import warm_up
from omnistage.stages.vllm.warm_up import ODD, warm_up_lengths

TUNED = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]


@pytest.mark.parametrize("captured", [128, 256, 512])
def test_each_tuned_size_that_a_step_without_graph_can_have_is_seen_even_and_odd(
    captured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "current_platform", SimpleNamespace(is_cuda_alike=lambda: True))
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
        model_config=SimpleNamespace(max_model_len=8192),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=captured),
    )

    def tuned(length: int) -> int:
        return min(TUNED, key=lambda size: abs(size - length))

    lengths = warm_up_lengths(config)
    assert all(captured < length <= 2048 for length in lengths)
    for is_divided in (True, False):
        seen = {tuned(length) for length in lengths if (length % 8 == 0) == is_divided}
        possible = {tuned(length) for length in range(captured + 1, 2047)}
        assert possible <= seen, is_divided
    assert ODD % 2 == 1
