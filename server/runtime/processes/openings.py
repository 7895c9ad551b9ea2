"""Wakes those that wait for a place in the graph."""

import asyncio


class Openings:
    """Has an event for whatever may let a refused request in.

    That is a stage that takes requests again, the end of an answer, and the server's end.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Returns the next one: take it before the request that may be refused."""
        return self._next

    def note(self) -> None:
        """Wake all that wait."""
        self._next.set()
        self._next = asyncio.Event()
