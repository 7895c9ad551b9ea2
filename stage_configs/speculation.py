"""Which stages' engines may draft tokens."""

from collections.abc import Mapping
from typing import Any

from omnistage.stage_configs.kinds import Kind
from omnistage.stage_configs.parallel import Problem

SPECULATION = "speculative_config"  # of vLLM's engine


def speculation_problem(kind: Kind, engine: Mapping[str, Any]) -> Problem | None:
    """Why a stage's engine cannot draft tokens; None if it does not, or can."""
    if engine.get(SPECULATION) and (kind.engine_takes_feed or kind.feeds_itself):
        message = (
            "not in a stage of this kind: each of its steps takes an input from outside, which a "
            "draft of a later token does not have; allowed in stages that answer in text"
        )
        return message, ("engine", SPECULATION)
    return None
