"""Makes a `generate` of transformers follow choices that were made elsewhere, and judges them."""

from collections.abc import Iterable, Sequence

import torch
from transformers import LogitsProcessor

from omnistage.stages.messages.to_reference import Choices

FURTHEST_NATS = 1e4  # stands for what the reference rules out


class Forced(LogitsProcessor):
    """Leaves one token to choose at each step, and keeps what would have been chosen.

    It comes after the processors that `generate` adds, so it sees scores as they are chosen from.
    Where several tokens are named, such as two that end an answer, it takes the likeliest of them.
    """

    def __init__(self, token_ids: Sequence[int | Sequence[int]]) -> None:
        self._token_ids = token_ids
        self.choices = Choices()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores [1, tokens] of one row: 0 for its token, -inf for all others."""
        named = self._token_ids[len(self.choices.best)]
        logprobs = scores[0].double().log_softmax(-1)
        token = named if isinstance(named, int) else max(named, key=lambda one: logprobs[one])
        best, logprob = logprobs.max(-1), float(logprobs[token])
        self.choices.best.append(int(best.indices))
        self.choices.gaps.append(min(float(best.values) - logprob, FURTHEST_NATS))
        self.choices.logprobs.append(max(logprob, -FURTHEST_NATS))
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0
        return forced


def joined(parts: Iterable[Choices]) -> Choices:
    """Returns all choices, one after another."""
    made = Choices()
    for part in parts:
        made.best += part.best
        made.gaps += part.gaps
        made.logprobs += part.logprobs
    return made


def part_of(choices: Choices, begin: int, end: int) -> Choices:
    """Returns the choices from `begin` to before `end`."""
    here = slice(begin, end)
    return Choices(choices.best[here], choices.gaps[here], choices.logprobs[here])
