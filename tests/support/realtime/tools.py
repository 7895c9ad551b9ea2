"""Fake stages that call a tool, for clients of the Realtime API as they are."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from support.fakes.stages import FakeCode2Wav, text_of

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.to_gateway import Sound
from omnistage.stages.messages.to_stage import Request

TOOL_TEXT = "use the tool"  # what makes the model call it


def tool_call() -> list[Any]:
    """Return the chunks of a call that needs a city."""
    head = {"index": 0, "id": "call_1", "type": "function"}
    function = {"name": "weather", "arguments": ""}
    arguments = {"arguments": '{"city": "Paris"}'}
    return [
        ({"tool_calls": [{**head, "function": function}]}, {}),
        ({"tool_calls": [{"index": 0, "function": arguments}]}, {}),
        ({"content": ""}, {"finish": "tool_calls"}),
    ]


class Speaker(FakeCode2Wav):
    """A vocoder that says nothing where a tool is called, and else sounds a tone."""

    async def answer(self, request_id: str, request: Request) -> AsyncIterator[Any]:
        """Yield the sound of an answer."""
        if text_of(request.body) == TOOL_TEXT:
            yield Sound(0), {}, True
            return
        async for made in super().answer(request_id, request):
            yield made

    def _sound(self, first: int, count: int, has_codes: bool) -> dict[str, Tensor]:
        made = super()._sound(first, count, has_codes)
        times = np.arange(made["pcm"].numpy().shape[0]) / 24_000
        wave = 8000 * np.sin(2 * np.pi * 400 * times)  # whole periods in a frame
        return {**made, "pcm": Tensor.from_numpy(wave.astype(np.int16))}
