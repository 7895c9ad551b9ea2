"""Calls of denoisers that ranks share come to what they come to alone, without words of the GPU."""

from typing import Any

import pytest
import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry
from support.denoising.shared_calls import Shared, Sharing, shared_calls

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.ranks.sequences import (
    CONFIG,
    MARK,
    SharedSequences,
    reach_attention,
)

CASES = [
    Sharing("qwen-image", {"ulysses": 4}),
    Sharing("qwen-image", {"ring": 4}),
    Sharing("qwen-image", {"ulysses": 2, "ring": 2}),
    Sharing("qwen-image", {"ulysses": 2}, 2),
    Sharing("qwen-image", {"ring": 2}, 2),
    Sharing("qwen-image", {"tensor": 2}, 2),
    Sharing("qwen-image", {"ulysses": 4}, has_mask=True),
    Sharing("qwen-image", {"ulysses": 2, "ring": 2}, has_mask=True),
    Sharing("qwen-image", {"ring": 2}, 2, "_native_math"),
    Sharing("qwen-image", {"ulysses": 2}, 2, is_compiled=True),
    Sharing("qwen-image", {"ulysses": 2}, 2, is_quantized=True),
    Sharing("flux", {"ulysses": 2, "ring": 2}),
    Sharing("flux", {"ulysses": 2}, 2),
    Sharing("flux", {"tensor": 2}, 2),
    Sharing("wan", {"ulysses": 2, "ring": 2}),
    Sharing("wan", {"ulysses": 2}, 2),
]
ATTENTIONS = {
    "qwen-image": ("transformer_blocks",),
    "flux": ("transformer_blocks", "single_transformer_blocks"),
    "wan": ("blocks",),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[list[Shared]]:
    return shared_calls(CASES, tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("place", range(len(CASES)), ids=[str(one) for one in CASES])
def test_shared_calls_are_those_of_one_rank_and_need_no_sizes_twice(
    outcomes: list[list[Shared]], place: int
) -> None:
    case = CASES[place]
    transformer = make_tiny(case.name).transformer
    num = sum(len(getattr(transformer, name)) for name in ATTENTIONS[case.name])
    limit = 0.05 if case.is_quantized else 1e-5  # a rounding may lead to another step of float8
    for outcome in outcomes[place]:
        assert max(outcome.errors) < limit
        counts = outcome.second
        assert counts.get("sizes", 0) == 0
        assert counts.get("reads", 0) == 0
        if "tensor" not in case.ways:
            gathered_masks = num if case.has_mask else 0
            assert counts.get("exchanges", 0) == (2 * num if "ulysses" in case.ways else 0)
            in_ring = num if "ring" in case.ways else 0
            assert counts["gathers"] == in_ring + gathered_masks + 1
            assert counts.get("sums", 0) == 0
        else:
            assert counts["sums"] > 0
            assert counts.get("exchanges", 0) == counts.get("gathers", 0) == 0


def test_all_back_ends_of_attention_take_what_ranks_share() -> None:
    """Each is called as on one rank: whole sequences, no configuration, nothing but its output."""
    reach_attention()
    shared = _Noted()
    for name, attention in _AttentionBackendRegistry._backends.items():
        assert CONFIG in _AttentionBackendRegistry._supported_arg_names[name]
        tensors = torch.zeros(3, 1, 2, 2, 4)
        mask = torch.ones(1, 2, dtype=torch.bool)
        attention(*tensors, attn_mask=mask, scale=2.0, _parallel_config=shared)
        given, noted_mask = shared.noted.pop()
        assert given.keywords == {"scale": 2.0}
        assert not hasattr(given.func, MARK)
        assert noted_mask is mask
        with pytest.raises(ValueError, match="do not share causal attention"):
            attention(*tensors, is_causal=True, _parallel_config=shared)
    assert len(_AttentionBackendRegistry._backends) > 10


class _Noted(SharedSequences):
    """Notes what is to be attended, and with what."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, Any]] = []

    def attend(self, attention: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        self.noted.append((attention, mask))
        return query
