"""A pipeline that serves and is controlled, beside a bare one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from support.denoising.controlled import Controlled
from support.tiny_pipelines import quiet

from omnistage.stages.diffusion.checkpoint import make_tiny

Make = Callable[..., Controlled]


@pytest.fixture
def controlled() -> Iterator[Make]:
    """A function that makes them; `options` are engine arguments."""
    torch.set_num_threads(1)
    with ExitStack() as made:

        def make(name: str, **options: Any) -> Controlled:
            one = Controlled(name, options)
            made.callback(one.close)
            return one

        yield make


@pytest.fixture(scope="module")
def sd3() -> Any:
    """A tiny Stable Diffusion 3."""
    return quiet(make_tiny("sd3"))
