"""Says whether a stage accepts requests, and why not."""

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.stage_link import StageLink
from omnistage.server.runtime.stage_record import StageState

RETRY_LOADING_S = 5


def check_ready(link: StageLink) -> None:
    """Raise ApiError for a stage that loads or has ended."""
    if link.record.state is StageState.LOADING:
        raise unavailable(f"Stage {link.name} is still loading.", code="loading")
    if link.record.state is StageState.DEAD:
        raise dead(link)


def check_open(link: StageLink) -> None:
    """Raise ApiError for a stage that takes no request now."""
    check_ready(link)
    if link.record.is_closed:
        raise unavailable(f"Stage {link.name} is asleep.", code="sleeping")
    if link.record.missed:
        message = f"Stage {link.name} is not as commands have made the others of its stage."
        raise unavailable(message, code="stage_unavailable")


def dead(link: StageLink) -> ApiError:
    """Returns what its end means for what it was asked."""
    message = f"Stage {link.name} has ended ({link.record.ended_by})."
    return unavailable(message, code="stage_unavailable")


def lost(source: str, target: str) -> ApiError:
    """Returns what it means for a request that what one stage sent to the next is gone.

    One of the two may be the gateway.
    """
    message = f"The connection from {source} to {target} was lost."
    return unavailable(message, code="edge_lost")


def stopping() -> ApiError:
    """Returns what a request gets of a server that is about to end."""
    return unavailable("The server is shutting down.", code="stopping")


def unavailable(message: str, code: str) -> ApiError:
    """A 503 that says when to ask again."""
    return ApiError(503, message, code=code, retry_after_s=RETRY_LOADING_S)
