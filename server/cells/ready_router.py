"""Which replica of Ray Serve gets a request: of those that are ready the less busy of two.

Serve's own router takes the less busy of any two. A cell that lacks a stage refuses at once, so
there it looks idle and gets most of the requests.
"""

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

READY = "ready"  # what a replica tells of itself


class Replica(Protocol):
    """What is asked of one of Serve's."""

    @property
    def replica_id(self) -> Any:
        """Has a `unique_id`."""

    @property
    def routing_stats(self) -> dict[str, Any]:
        """What it has told; nothing yet of one that has just begun."""


class ReadyRouter(RequestRouter):  # type: ignore[misc]
    """Asks two of the ready replicas; with a session first the one that has it.

    A session's replica is the same as long as the same ones are ready, whichever process routes.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Groups, asked one after the other, in which the shortest queue with room gets it."""
        if pending_request is None:
            return ranked(candidate_replicas, "")
        pending_request.routing_context.should_backoff = True
        # Older versions know no sessions.
        return ranked(candidate_replicas, getattr(pending_request.metadata, "session_id", ""))


def ranked(replicas: Sequence[Replica], session: str) -> list[list[Any]]:
    """The groups; if no replica is ready, any may say so to the client."""
    ready = [one for one in replicas if one.routing_stats.get(READY, True)] or [*replicas]
    if not ready:
        return []
    pair = random.sample(ready, min(2, len(ready)))
    return [[max(ready, key=lambda one: _weight(session, one))], pair] if session else [pair]


def _weight(session: str, replica: Replica) -> bytes:
    """The highest has the session: if it goes, only its own sessions move."""
    return blake2b(f"{session} {replica.replica_id.unique_id}".encode()).digest()
