"""How a request ended, reported by who knows it to who counts."""

from enum import StrEnum

from omnistage.server.common.errors import CLIENT_CLOSED_REQUEST


class Outcome(StrEnum):
    """The ends a request can have."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"


def of_status(status: int) -> Outcome:
    """Returns what an answer with this status is: a 503 asks the client to come back."""
    if status < 400:
        return Outcome.FINISHED
    if status == CLIENT_CLOSED_REQUEST:
        return Outcome.CANCELLED
    return Outcome.REFUSED if status < 500 or status == 503 else Outcome.FAILED
