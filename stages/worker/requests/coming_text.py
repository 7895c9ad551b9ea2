"""The texts of requests as their pieces come."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from omnistage.stages.messages.body import GivenText


class ComingText:
    """The text of one request; pieces that nobody has taken yet become one."""

    def __init__(self, first: str, is_whole: bool) -> None:
        self._waiting = [first]
        self._is_whole = is_whole
        self._changed = asyncio.Event()
        self._changed.set()

    def add(self, text: str, last: bool) -> None:
        """The next piece; nothing follows the last."""
        self._waiting.append(text)
        self._is_whole = last
        self._changed.set()

    async def pieces(
        self, wait_s: float, show_life: Callable[[], None]
    ) -> AsyncGenerator[str, None]:
        """Returns what comes, until the text is whole.

        `show_life` is called behind each piece, and after `wait_s` without any: what is made of a
        text comes as slowly as the text, and a piece may be too short to make anything of.
        """
        while self._waiting or not self._is_whole:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                show_life()
                continue
            self._changed.clear()
            text = "".join(self._waiting)
            self._waiting.clear()
            yield text
            show_life()


class ComingTexts:
    """The texts of a stage's requests, by their ids."""

    def __init__(self) -> None:
        self._texts: dict[str, ComingText] = {}

    def open(self, request_id: str, body: GivenText) -> ComingText:
        """That of a request which is about to be served, as its body begins it."""
        text = self._texts[request_id] = ComingText(body.text, not body.is_open)
        return text

    def add(self, request_id: str, text: str, last: bool) -> None:
        """The next piece of a text; of one that is closed it is dropped."""
        if request_id in self._texts:
            self._texts[request_id].add(text, last)

    def close(self, request_id: str) -> None:
        """The request has ended."""
        self._texts.pop(request_id, None)
