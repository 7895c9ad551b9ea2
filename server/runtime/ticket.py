"""A request's place among those that the server takes at once."""

from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from omnistage.server.runtime.flight import Flight
from omnistage.server.runtime.request import GraphRequest, Output


class Ticket:
    """Held from a request's admission to the end of its answer: a context that gives it back.

    Between the two the request's media are loaded, it runs in the graph, and its client reads.
    """

    def __init__(
        self,
        run: Callable[[GraphRequest, "Ticket"], AsyncGenerator[Output, None]],
        give_back: Callable[["Ticket"], None],
        admitted_at: float,
    ) -> None:
        self._run = run
        self._give_back = give_back
        self.admitted_at = admitted_at
        self._is_held = True
        self.flights: list[Flight] = []  # what of it is in the graph, or was

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_held = False
        self._give_back(self)

    def run(self, request: GraphRequest) -> AsyncGenerator[Output, None]:
        """Send the request now; its outputs as they come.

        Closing them early cancels the request, and giving the place back does before any of them
        was asked for. One that is run after another goes on with the same answer, and needs no
        place of its own. Raises ApiError if a stage on its way has ended or been closed since the
        admission.
        """
        assert self._is_held, "the place was given back before the request ran"
        return self._run(request, self)

    @property
    def has_output(self) -> bool:
        """Returns whether some output of its request has come."""
        return any(flight.first_at for flight in self.flights)
