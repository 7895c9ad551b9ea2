"""Qwen3-Omni's processors.

The tiny checkpoint's limits on pixels and seconds are lower than the real model's.
"""

from omnistage.stages.checkpoint.processors import Processors

PATCH_SIZE = 16
_CLASS = "Qwen3OmniMoeProcessor"

TINY = Processors(_CLASS, PATCH_SIZE, (32 * 32, 64 * 32 * 32), seconds=30)
REAL = Processors(_CLASS, PATCH_SIZE, (3136, 12845056), seconds=300)
