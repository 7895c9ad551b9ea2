"""Seeds on a CPU: a request draws from its generator for the tokens that it keeps, and no others.

vLLM samples after every piece of a prompt, drops the token of all pieces but the last, and then
sets the request's generator back, which torch can do on CUDA only: on a CPU the engine ends. And
before vLLM 0.32 one request without a seed in a step made a CPU pass over the seeds of the others.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class Spare(torch.Generator):
    """Draws that nobody will want again: there is no need to set it back."""

    def __init__(self) -> None:
        self.seed()

    def get_offset(self) -> int:
        """Where vLLM believes it to be."""
        return 0

    def set_offset(self, offset: int) -> "Spare":
        """Change nothing: the next draw is as good as the last."""
        return self


@contextmanager
def kept_tokens_only(
    generators: dict[int, torch.Generator], is_dropped: Iterable[bool], spare: Spare
) -> Iterator[None]:
    """Within, all rows but the seeded ones whose token is kept draw from the spare generator.

    `generators` by row of the batch, those with a seed; `is_dropped` of each row.
    """
    own = dict(generators)
    if own:
        rows = enumerate(is_dropped)
        generators |= {row: spare for row, dropped in rows if dropped or row not in own}
    try:
        yield
    finally:
        generators.clear()
        generators |= own
