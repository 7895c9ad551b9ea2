"""The media of a request that travel before it, in pieces."""

from collections.abc import AsyncGenerator
from typing import Protocol

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import MediumPiece

Piece = tuple[MediumPiece, Tensor]


class MediaInput(Protocol):
    """Reads media as fast as a stage takes them."""

    def pieces(self, reading: Reading) -> AsyncGenerator[Piece, None]:
        """Yield all pieces in order, as a stage with this reading takes them, as often as asked.

        Raises ApiError for a medium that cannot be read, is too large or is not for this stage.
        """
