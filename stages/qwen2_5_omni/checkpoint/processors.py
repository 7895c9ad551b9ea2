"""Qwen2.5-Omni's processors; the tiny checkpoint has lower limits on pixels and seconds."""

from functools import partial

from omnistage.stages.checkpoint.processors import Processors

PATCH_SIZE = 14
_make = partial(
    Processors,
    "Qwen2_5OmniProcessor",
    PATCH_SIZE,
    mean=(0.48145466, 0.4578275, 0.40821073),
    deviation=(0.26862954, 0.26130258, 0.27577711),
)

TINY = _make((28 * 28, 64 * 28 * 28), seconds=30)
REAL = _make((3136, 12845056), seconds=300)
