"""Sends a request's progress while it is computed, at the pace at which its client reads."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.request import outputs
from omnistage.stages.diffusion.request.sound import Samples
from omnistage.stages.messages.to_gateway import (
    TOKEN_SIDE,
    ImagePixels,
    PipelineOutput,
    Sound,
    Step,
)
from omnistage.stages.worker.stage import StagePorts

Item = tuple[Step | ImagePixels, outputs.Picture | None]
NUM_SAMPLES = 1 << 16  # of a channel, in one message


class Told:
    """Steps and previews of one request; while its client does not read, steps replace each other.

    So no more waits than there are previews, and a step after each.
    """

    def __init__(self, ports: StagePorts, request_id: str, kind: PipelineOutput) -> None:
        self._ports = ports
        self._request_id = request_id
        self._kind = kind
        self._waiting: deque[Item] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        self._last_step: Step | None = None
        self._told_at = 0.0
        self._quiet_s = ports.deadlines.next_chunk_s / 8

    def step(self, step: int, num_steps: int) -> None:
        """A step was taken: tell it as soon as there is room."""
        if not self._is_over:
            self._ports.mark(self._request_id, "last_step" if step == num_steps else "first_step")
        self._last_step = Step(self._kind, step, num_steps)
        self._put(self._last_step)

    @property
    def is_quiet(self) -> bool:
        """Returns whether its last step was told an eighth of what a gateway waits ago; for any
        thread.
        """
        return self._last_step is not None and time.monotonic() - self._told_at > self._quiet_s

    def wait(self) -> None:
        """Others are served first, which is no silence of the stage.

        The last step is told again if all has been quiet since, so that the gateway waits on.
        """
        if self._last_step is not None and self.is_quiet:
            self._put(self._last_step)

    def preview(self, pixels: outputs.Picture) -> None:
        """Sends the image so far as soon as there is room."""
        assert self._kind != "audio"
        self._put(ImagePixels(self._kind, is_preview=True), pixels)

    def _put(self, message: Step | ImagePixels, pixels: outputs.Picture | None = None) -> None:
        if self._is_over:
            return  # the request was cancelled: nobody waits
        self._told_at = time.monotonic()
        if not self._waiting and self._ports.room.is_free(self._request_id):
            self._send(message, pixels)
            return
        if pixels is None and self._waiting and self._waiting[-1][1] is None:
            self._waiting.pop()
        self._waiting.append((message, pixels))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting:
            await self._ports.room.wait(self._request_id)
            self._send(*self._waiting.popleft())

    async def finish(
        self,
        pictures: list[outputs.Picture],
        text_tokens: int,
        fps: float = 0,
        token_side: int = TOKEN_SIDE,
        sound: Samples | None = None,
        num_layers: int = 1,
        thoughts: Sequence[str] = (),
    ) -> None:
        """All that waits, then the pictures and the sound, each once there is room for it.

        `num_layers`: so many of the pictures are the layers of one. `thoughts`: one for each
        picture, if the model wrote any.
        """
        assert self._kind != "audio"
        await self._decoded()
        for index, pixels in enumerate(pictures):
            await self._ports.room.wait(self._request_id)
            message = ImagePixels(
                self._kind,
                index,
                text_tokens=text_tokens,
                fps=fps,
                token_side=token_side,
                layer=index % num_layers if num_layers > 1 else None,
                thought=thoughts[index] if thoughts else "",
            )
            self._send(message, pixels, last=sound is None and index == len(pictures) - 1)
        if sound is not None:
            await self._send_sound(sound)

    async def finish_sound(self, samples: Samples) -> None:
        """All that waits, then audio alone."""
        await self._decoded()
        await self._send_sound(samples)

    async def _decoded(self) -> None:
        self._ports.mark(self._request_id, "decoded")
        if self._sending is not None:
            await self._sending

    async def _send_sound(self, samples: Samples) -> None:
        message = Sound(output="video" if self._kind == "video" else "audio")
        for start in range(0, len(samples), NUM_SAMPLES):
            await self._ports.room.wait(self._request_id)
            pcm = Tensor.from_numpy(samples[start : start + NUM_SAMPLES])
            is_last = start + NUM_SAMPLES >= len(samples)
            self._ports.send_output(self._request_id, message, {"pcm": pcm}, is_last)

    def nothing(self) -> None:
        """Nothing was wanted: the end, and no picture."""
        self._send(Step(self._kind, 0), None, last=True)

    def _send(
        self, message: Step | ImagePixels, pixels: outputs.Picture | None, last: bool = False
    ) -> None:
        tensors = {} if pixels is None else {"pixels": Tensor.from_numpy(pixels)}
        self._ports.send_output(self._request_id, message, tensors, last)

    def close(self) -> None:
        """Nothing more is told."""
        self._is_over = True
        if self._sending is not None:
            self._sending.cancel()

    @property
    def num_waiting(self) -> int:
        """Steps and previews that wait for room."""
        return len(self._waiting)
