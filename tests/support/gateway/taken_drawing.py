"""A request of a pipeline as its stage gets it."""

from typing import Any

import numpy.typing as npt
from support.fakes.stages import FakeStage

from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_stage import MediumPiece
from omnistage.stages.worker.requests.coming_media import ComingMedia


class TakenDrawing:
    """The last request that a stage got, with its media."""

    def __init__(self, stage: FakeStage) -> None:
        chunk = stage.opened[-1]
        assert isinstance(chunk.message.body, Draw)
        self.fields = chunk.message.fields
        self.media: list[GivenMedium] = chunk.message.body.media
        self._tensors = chunk.tensors
        coming = ComingMedia()
        for one in stage.seen:
            if one.request_id == chunk.request_id and isinstance(one.message, MediumPiece):
                coming.add(one.request_id, one.message, one.tensors["data"])
        self._pieces = {name: one for (name, _), one in coming.take(chunk.request_id).items()}

    def array(self, index: int) -> npt.NDArray[Any]:
        """Return a medium, whether it came with the request or before it."""
        name = self.media[index].tensor
        if name in self._tensors:
            return self._tensors[name].numpy()
        return self._pieces[name].data()
