"""A stage without a gateway: what it sends is kept."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Sender
from omnistage.stages.diffusion.stage import DiffusionStage
from omnistage.stages.worker.stage import StagePorts


class Outputs:
    """In place of the channel to the gateway."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[Chunk]] = defaultdict(list)

    def send(self, chunk: Chunk) -> None:
        """Keep it."""
        self.chunks[chunk.request_id].append(chunk)

    def credit(self, _: str) -> int:
        """There is always room."""
        return 1

    def pixels(self, request_id: str) -> npt.NDArray[np.uint8]:
        """All pictures or frames of a request: [n, height, width, 3]."""
        sent = [chunk for chunk in self.chunks[request_id] if "pixels" in chunk.tensors]
        assert [chunk.last for chunk in sent] == [False] * (len(sent) - 1) + [True]
        return np.stack([chunk.tensors["pixels"].numpy() for chunk in sent])


def stage_over(
    folder: Path, engine: Mapping[str, Any] | None = None, /, **warm_up: Any
) -> tuple[DiffusionStage, Outputs]:
    """A diffusion stage that serves a pipeline's folder, not yet started.

    `engine`: arguments beside the warm-up's.
    """
    outputs = Outputs()
    sender: Any = outputs
    return DiffusionStage(ports_over(folder, sender, engine, **warm_up)), outputs


def ports_over(
    folder: Path, sender: Sender, engine: Mapping[str, Any] | None = None, /, **warm_up: Any
) -> StagePorts:
    """The ports of a diffusion stage that serves a pipeline's folder."""
    arguments = {"warm_up": warm_up, "dtype": "float32", **(engine or {})}
    return StagePorts("dit", str(folder), arguments, {}, sender)
