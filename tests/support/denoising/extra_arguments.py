"""Other arguments of a pipeline's call, as requests give them in `extra`."""

from collections.abc import Mapping
from typing import Any

import pytest

from omnistage.stages.diffusion.control.extra import ExtraOptions
from omnistage.stages.worker.failure import RequestError


def refusal(pipeline: Any, given: Mapping[str, Any], **options: Any) -> RequestError:
    """The error for a request's `extra`; `options`: engine arguments of the stage."""
    with pytest.raises(RequestError) as refused:
        ExtraOptions.of(options).arguments(pipeline, given)
    return refused.value
