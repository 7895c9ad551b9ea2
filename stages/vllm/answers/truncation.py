"""Top-k and top-p of a request that are the same whatever else is sampled in the step.

vLLM has several implementations and takes one by how many requests a step has: vLLM 0.26 one for
fewer than 8 and one for more, vLLM 0.32 one that divides a row among programs. Equal logits at the
end of what is kept, which are common in bfloat16, are all kept by one and not by another. With
VLLM_BATCH_INVARIANT our logits processor truncates instead, and vLLM finds nothing left to do.
"""

from typing import Any

import numpy as np
import torch
import vllm.envs
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.step.transfer import to_device

PATH = f"{__name__}:Truncation"
BLOCK_ROWS = 16  # at once: vLLM leaves no memory for what we need of it
ARGUMENT = "omnistage_truncation"  # of a request's extra_args: top_k and top_p


def take_over(params: SamplingParams) -> None:
    """With VLLM_BATCH_INVARIANT: have the processor truncate in vLLM's place."""
    if not vllm.envs.VLLM_BATCH_INVARIANT or (params.top_k <= 0 and params.top_p >= 1.0):
        return
    params.extra_args = {**(params.extra_args or {}), ARGUMENT: (params.top_k, params.top_p)}
    params.top_k, params.top_p = 0, 1.0


def _told(params: SamplingParams, *_: object) -> tuple[int, float] | None:
    found = (params.extra_args or {}).get(ARGUMENT)
    return None if found is None else (int(found[0]), float(found[1]))


class Truncation(LogitsProcessor):
    """Truncates the rows whose request says so by `take_over`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._told: dict[int, tuple[int, float]] = {}
        self._rows = self._top_k = self._top_p = torch.empty(0)

    def is_argmax_invariant(self) -> bool:
        """The likeliest token is always kept."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests of the batch."""
        if process_dict_updates(self._told, batch_update, _told):
            rows = np.array(list(self._told), np.int64)
            top_k, top_p = zip(*self._told.values(), strict=True) if self._told else ((), ())
            self._rows = to_device(rows, self._device)
            self._top_k = to_device(np.array(top_k, np.int64), self._device)
            self._top_p = to_device(np.array(top_p, np.float64), self._device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Float32 [B, vocabulary], changed in place."""
        for start in range(0, len(self._told), BLOCK_ROWS):
            some = slice(start, start + BLOCK_ROWS)
            rows = self._rows[some]
            logits[rows] = truncated(logits[rows], self._top_k[some], self._top_p[some])
        return logits


def truncated(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Logits [n, vocabulary] with -inf for all but the likeliest; int64 [n] and float64 [n].

    Kept are `top_k` at most, all if it is not above 0, and of these the fewest whose probability
    among them is at least `top_p`. Of equal logits the lower ids come first. Sums are float64: in
    whichever order a GPU makes them, they do not differ by as much as a probability does.
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(logits.shape[-1], device=logits.device)
    is_kept = (place < top_k[:, None]) | (top_k <= 0)[:, None]
    weight = (ordered - ordered[:, :1]).double().exp().masked_fill_(~is_kept, 0.0)
    total = weight.cumsum(-1)
    is_kept &= total - weight < top_p[:, None] * total[:, -1:]
    is_kept[:, 0] = True
    return torch.full_like(logits, float("-inf")).scatter_(
        1, ids, ordered.masked_fill_(~is_kept, float("-inf"))
    )
