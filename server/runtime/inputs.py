"""Parts of a request that come in pieces: its media before it, its text while it is served."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import ApiError
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import MediumPiece

GAP_S = 30.0  # from one piece to the next
WHOLE_S = 600.0  # from the first to the last

Piece = tuple[MediumPiece, Tensor]


class MediaInput(Protocol):
    """Reads media as fast as a stage takes them."""

    def pieces(self, reading: Reading) -> AsyncGenerator[Piece, None]:
        """Yield all pieces in order, as a stage with this reading takes them, as often as asked.

        Raises ApiError for a medium that cannot be read, is too large or is not for this stage.
        """


class TextInput:
    """The text of a request that goes on while it is served: its body has the first piece.

    Takes pieces, and gives them out joined as fast as the stage takes them.
    """

    def __init__(self, gap_s: float = GAP_S, whole_s: float = WHOLE_S) -> None:
        now = asyncio.get_running_loop().time()
        self._gap_s = gap_s
        self._whole_by = now + whole_s
        self._gap_by = now + gap_s
        self._waiting: list[str] = []
        self._changed = asyncio.Event()
        self.is_whole = False

    @property
    def due_at(self) -> float:
        """When the next piece must be here, of the loop's clock."""
        return min(self._gap_by, self._whole_by)

    def add(self, text: str) -> None:
        """The next piece."""
        self._gap_by = asyncio.get_running_loop().time() + self._gap_s
        self._waiting.append(text)
        self._changed.set()

    def extend(self, seconds: float) -> None:
        """Put the deadline of the next piece off."""
        self._gap_by += seconds
        self._whole_by += seconds

    def end(self) -> None:
        """No more will come."""
        self.is_whole = True
        self._changed.set()

    async def ready(self) -> None:
        """Return once there is something to take: a piece, or the end, as often as it is asked."""
        await self._changed.wait()

    def take(self) -> tuple[str, bool]:
        """All that waits, and whether it is the last."""
        if not self.is_whole:
            self._changed.clear()
        text = "".join(self._waiting)
        self._waiting.clear()
        return text, self.is_whole


def late_text() -> ApiError:
    """The failure of a request whose text did not come in time."""
    return ApiError(408, "The next piece of the text did not come in time.", code="text_timeout")
