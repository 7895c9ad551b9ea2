"""An answer on a WebSocket, followed and counted as a request of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from omnistage.server.common.errors import ApiError
from omnistage.server.common.outcome import Outcome, of_status
from omnistage.server.common.trace import following
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.state import RequestState, state_of
from omnistage.server.telemetry.follow import WEBSOCKET


def new_answer(scope: Scope, number: int) -> RequestState:
    """Make the state of one answer of a connection, by its number."""
    connection = state_of(scope)
    state = RequestState(key=connection.key, charge=connection.charge)
    state.trace.request_id = f"{connection.trace.request_id}.{number}"
    return state


@contextmanager
def answered(
    gateway: Gateway, scope: Scope, path: str, state: RequestState
) -> Iterator[RequestState]:
    """Follow one answer of a connection; what it raises is how it ended."""
    telling, began_at = gateway.following, time.monotonic()
    telling.begin(state.trace, WEBSOCKET, scope, is_answer=True)
    outcome, status = Outcome.CANCELLED, None
    try:
        with state.at_end, following(state.trace):
            yield state
        outcome, status = Outcome.FINISHED, 200
    except ApiError as error:
        outcome, status = of_status(error.status), error.status
        raise
    except Exception:
        outcome, status = Outcome.FAILED, 500
        raise
    finally:
        state.trace.outcome, state.trace.status = outcome, status
        telling.end(state.trace)
        gateway.metrics.answered(path, outcome, status, time.monotonic() - began_at)
