"""Top-k and top-p by our logits processor, beside what transformers keeps."""

import pytest
import torch
import vllm.envs
from transformers import TopKLogitsWarper, TopPLogitsWarper
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor.interface import AddedRequest

from omnistage.stages.vllm.answers.truncation import ARGUMENT, Truncation, take_over, truncated
from omnistage.stages.vllm.compat import SamplingParams


def asked(top_k: int, top_p: float) -> SamplingParams:
    params = SamplingParams(top_k=top_k, top_p=top_p)
    take_over(params)
    return params


@pytest.fixture(autouse=True)
def invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True, raising=False)


def test_vllm_is_left_nothing_to_truncate() -> None:
    params = asked(5, 0.9)
    assert (params.top_k, params.top_p) == (0, 1.0)
    assert params.extra_args == {ARGUMENT: (5, 0.9)}
    assert asked(0, 1.0).extra_args is None


def test_without_the_switch_vllm_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", False)
    params = asked(5, 0.9)
    assert (params.top_k, params.top_p, params.extra_args) == (5, 0.9, None)


@pytest.mark.parametrize(("top_k", "top_p"), [(7, 1.0), (0, 0.8), (40, 0.5), (1, 0.1), (0, 1e-6)])
def test_what_is_kept_is_what_transformers_keeps(top_k: int, top_p: float) -> None:
    logits = torch.randn(16, 200, generator=torch.Generator().manual_seed(1))
    expected = logits
    if top_k:
        expected = TopKLogitsWarper(top_k)(torch.empty(0), expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(torch.empty(0), expected)
    rows = len(logits)
    found = truncated(logits, torch.tensor([top_k] * rows), torch.tensor([top_p] * rows).double())
    assert torch.equal(found, expected)


def test_of_equal_logits_as_many_are_kept_as_were_asked_for() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    found = truncated(logits, torch.tensor([2]), torch.tensor([1.0]).double())
    assert found.isfinite().tolist() == [[False, True, True, False, False]]
    found = truncated(logits, torch.tensor([0]), torch.tensor([0.5]).double())
    assert found.isfinite().tolist() == [[False, True, True, False, False]]


def test_a_row_is_truncated_alike_beside_any_others() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(64, 3000, generator=generator).bfloat16().float()  # many are equal
    top_k = torch.randint(0, 60, (64,), generator=generator)
    top_p = torch.rand(64, generator=generator).double()
    together = truncated(logits, top_k, top_p)
    for row in range(64):
        here = slice(row, row + 1)
        assert torch.equal(truncated(logits[here], top_k[here], top_p[here])[0], together[row])


def test_the_processor_follows_requests_through_the_batch() -> None:
    def kept(num_rows: int) -> list[int]:
        ascending = torch.arange(10.0).repeat(num_rows, 1)
        return [int(count) for count in processor.apply(ascending).isfinite().sum(1)]

    processor = Truncation(None, torch.device("cpu"), False)
    assert processor.is_argmax_invariant()
    processor.update_state(None)
    assert kept(2) == [10, 10]
    told = [asked(3, 1.0), asked(0, 1.0), asked(5, 1.0)]
    added: list[AddedRequest] = [(row, params, None, []) for row, params in enumerate(told)]
    processor.update_state(BatchUpdate(3, removed=[], added=added, moved=[]))
    assert kept(3) == [3, 10, 5]
    swap = (0, 1, MoveDirectionality.SWAP)
    processor.update_state(BatchUpdate(3, removed=[], added=[], moved=[swap]))
    assert kept(3) == [10, 3, 5]
    processor.update_state(BatchUpdate(2, removed=[1, 2], added=[], moved=[]))
    assert kept(2) == [10, 10]
