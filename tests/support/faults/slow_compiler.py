"""A worker's extension whose compiler takes its time."""

import time
from typing import Any

import torch

SLOW_COMPILER = "support.faults.slow_compiler.SlowCompiler"
COMPILE_SLOWLY = "compile_slowly"


class SlowCompiler:
    """A user's methods, for engines whose process has tests/ among its paths."""

    def compile_slowly(self, seconds: float) -> None:
        """Have torch compile a function for so long."""

        def compile_for_long(graph: Any, _: Any) -> Any:
            time.sleep(seconds)
            return graph

        def add_one(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        torch.compile(add_one, backend=compile_for_long)(torch.ones(1))
