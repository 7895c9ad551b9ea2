"""The media of requests as their pieces come, before the requests do."""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Tensor
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_stage import MediumKind, MediumPiece


class ReceivedMedium:
    """One medium; `about` is what its first piece said of it."""

    def __init__(self, medium: MediumKind, about: JsonMap) -> None:
        self.medium = medium
        self.about = about
        self._pieces: list[npt.NDArray[Any]] = []
        self._whole: npt.NDArray[Any] | None = None
        self._size = 0

    def add(self, piece: npt.NDArray[Any]) -> None:
        """Take the next piece; where the size of all is known they are put together at once."""
        if "shape" not in self.about:
            self._pieces.append(piece)
            return
        if self._whole is None:
            self._whole = np.empty(prod(self.about["shape"]), piece.dtype)
        self._whole[self._size : self._size + piece.size] = piece
        self._size += piece.size

    def data(self) -> npt.NDArray[Any]:
        """Return all of it, in the shape that it has."""
        if self._whole is not None:
            return self._whole.reshape(self.about["shape"])
        return self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)


# Of one request, by what the request calls them; a video that is heard has frames and a sound.
Received = dict[tuple[str, MediumKind], ReceivedMedium]


class ComingMedia:
    """The media of requests that have not come yet, by the requests' ids."""

    def __init__(self) -> None:
        self._requests: dict[str, Received] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request_id: str, message: MediumPiece, data: Tensor) -> None:
        """Take the next piece of a request's media."""
        media = self._requests.setdefault(request_id, {})
        key = message.name, message.medium
        if key not in media:
            media[key] = ReceivedMedium(message.medium, message.about or {})
        media[key].add(data.numpy())

    def take(self, request_id: str) -> Received:
        """Return the media of a request, which are kept here no longer."""
        return self._requests.pop(request_id, {})
