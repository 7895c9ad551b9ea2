"""Finds the stages whose engines may draft tokens."""

from collections.abc import Mapping

from omnistage.stage_configs.kinds import Kind
from omnistage.stage_configs.rules.parallel import Problem

# Arguments of vLLM's engine, each of which makes it draft: as one, or in parts.
SPECULATION = ("speculative_config", "spec_method", "spec_model", "spec_tokens")


def drafting(engine: Mapping[str, object]) -> str | None:
    """The argument by which an engine drafts tokens; None if it does not."""
    return next((name for name in SPECULATION if engine.get(name)), None)


def speculation_problem(kind: Kind, engine: Mapping[str, object]) -> Problem | None:
    """Why a stage's engine cannot draft tokens; None if it does not, or can."""
    name = drafting(engine)
    if name is not None and (kind.engine_takes_feed or kind.feeds_itself):
        message = (
            "not in a stage of this kind: each of its steps takes an input from outside, which a "
            "draft of a later token does not have; allowed in stages that answer in text"
        )
        return message, ("engine", name)
    return None
