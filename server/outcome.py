"""How a request ended, told by who knows it to who counts."""

from enum import StrEnum

from starlette.types import Scope

from omnistage.server.errors import CLIENT_CLOSED_REQUEST


class Outcome(StrEnum):
    """The ends a request can have."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"


def tell_outcome(scope: Scope, outcome: Outcome) -> None:
    """Say how a stream ended whose status was sent before: `scope["state"]["outcome"]`."""
    scope.setdefault("state", {})["outcome"] = outcome


def outcome_of(scope: Scope) -> Outcome:
    """As it was told; else what the answer's status says, if one was sent."""
    state = scope.get("state", {})
    told: Outcome | None = state.get("outcome")
    return of_status(state.get("status", CLIENT_CLOSED_REQUEST)) if told is None else told


def of_status(status: int) -> Outcome:
    """What an answer with this status is: a 503 asks the client to come back."""
    if status < 400:
        return Outcome.FINISHED
    if status == CLIENT_CLOSED_REQUEST:
        return Outcome.CANCELLED
    return Outcome.REFUSED if status < 500 or status == 503 else Outcome.FAILED
