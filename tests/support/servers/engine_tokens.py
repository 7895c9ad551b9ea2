"""The tokens that a server's thinker has counted, beside those that responses report."""

import re
from typing import Any

from support.servers.server import TinyServer
from support.servers.snapshots import reported_page


def check_sums(usage: dict[str, Any]) -> None:
    """The parts of a usage are the whole."""
    given, made = usage["input_token_details"], usage["output_token_details"]
    kinds = ("text_tokens", "audio_tokens", "image_tokens")
    assert sum(given[kind] for kind in kinds) == usage["input_tokens"]
    assert sum(given["cached_tokens_details"].values()) == given["cached_tokens"]
    assert all(given["cached_tokens_details"][kind] <= given[kind] for kind in kinds)
    assert made["text_tokens"] + made["audio_tokens"] == usage["output_tokens"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]


def engine_tokens(server: TinyServer) -> dict[str, int]:
    """What the thinker's engine has counted, once no stage has a request."""
    page, found = reported_page(server), {}
    for name in ("prompt_tokens", "prompt_tokens_cached", "generation_tokens"):
        (line,) = re.findall(rf'^vllm:{name}_total{{.*stage="thinker".*}} (\S+)$', page, re.M)
        found[name] = round(float(line))
    return found


def between(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was counted between."""
    return {name: after[name] - before[name] for name in after}
