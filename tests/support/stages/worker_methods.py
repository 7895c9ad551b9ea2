"""Methods that are mixed into vLLM's workers, as a user's own would be."""

import os
import time
from typing import Any

import torch

RESULTS: dict[str, Any] = {
    "text": "é\n",
    "numbers": [1, 2.5, True, None],
    "pair": (1, 2),
    "keys": {1: "one"},
    "not a number": float("nan"),
    "lone surrogate": "\ud800",
    "large integer": 1 << 64,
    "tensor": torch.ones(1),
    "object": object(),
    "cycle": [],
    "long": "x" * (2 << 20),
}
RESULTS["cycle"].append(RESULTS["cycle"])


class Base:
    """What the class below is made of."""

    model_runner: Any
    rank: int

    def num_weights(self) -> int:
        """How many values the model has."""
        return sum(one.numel() for one in self.model_runner.get_model().parameters())


class Methods(Base):
    """What tests want of workers."""

    factor = 2  # no method

    def process(self) -> int:
        """The worker's."""
        return os.getpid()

    def doubled(self, number: int) -> int:
        """An argument, changed."""
        return self._times(number)

    def _times(self, number: int) -> int:
        return self.factor * number

    def result(self, name: str) -> Any:
        """One that can be sent, or one that cannot."""
        return RESULTS[name]

    def fail_on(self, rank: int) -> str:
        """Raise on one of them, words that no client should get as bytes."""
        if self.rank == rank:
            raise RuntimeError("as it was asked to, \ud800")
        return "fine"

    def wait(self, seconds: float) -> str:
        """Compute nothing for so long."""
        time.sleep(seconds)
        return "waited"


NO_CLASS = 3
