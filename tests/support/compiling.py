"""Counts what torch compiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter


@contextmanager
def counted_codes() -> Iterator[Any]:
    """`frame_count`: codes that were made since; what would run uncompiled is an error.

    Torch keeps eight codes of one function, and runs what comes after them uncompiled.
    """
    counter = CompileCounter()
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend=counter))
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            yield counter
