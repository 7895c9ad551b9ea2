"""Puts an encoder between the stages' samples and the answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from omnistage.server.media.audio.contract import AudioEncoder
from omnistage.server.media.audio.encoder import MakeEncoder
from omnistage.server.runtime.request import AudioOutput, Output


async def encoded(
    outputs: AsyncGenerator[Output, None], make_encoder: MakeEncoder
) -> AsyncGenerator[Output, None]:
    """The same outputs with their samples encoded; the last one ends the file."""
    encoder: AudioEncoder | None = None
    async with aclosing(outputs):
        async for output in outputs:
            if isinstance(output, AudioOutput):
                encoder = encoder or make_encoder(output.samples)
                yield await _encoded(output, encoder)
            else:
                yield output


async def _encoded(output: AudioOutput, encoder: AudioEncoder) -> AudioOutput:
    def encode() -> bytes:
        data = encoder.encode(output.data)
        return data + encoder.finish() if output.last else data

    return replace(output, data=await asyncio.to_thread(encode) if encoder.is_slow else encode())
