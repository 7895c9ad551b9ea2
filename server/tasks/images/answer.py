"""From the images that leave the graph to OpenAI's image responses and events."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from omnistage.server.common.trace import FIRST_IMAGE, GATEWAY, current_trace
from omnistage.server.media.images import InputImages
from omnistage.server.runtime.request import ImageOutput, Outputs
from omnistage.server.tasks.images.schema import ImageRequest
from omnistage.server.tasks.images.store import ImageStore
from omnistage.server.tasks.images.usage import images_usage

# All that one request can make: ten images of the largest size and three previews, in base64.
MAX_UNSENT_BYTES = 1 << 30

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """The images of one request that was sent. `prefix` begins the names of its events."""

    prefix: str
    asked: ImageRequest
    given: InputImages
    made: Outputs

    async def events(self) -> AsyncGenerator[Event, None]:
        """Previews, then each image; the usages of several add up to the request's."""
        created_at = int(time.time())
        given = self.given.sizes
        num_previews = num_images = 0
        async with aclosing(self.outputs()) as outputs:
            async for output in outputs:
                if not output.pixels:
                    if self.asked.stream_progress:
                        taken = {"step": output.step, "steps": output.num_steps}
                        yield self._event("progress", **taken, stage=output.stage)
                    continue
                file = await self.encode(output)
                head = {"b64_json": file, "created_at": created_at, **self._head(output)}
                if output.is_preview:
                    yield self._event("partial_image", **head, partial_image_index=num_previews)
                    num_previews += 1
                    continue
                text_tokens = output.text_tokens if num_images == 0 else 0
                before = given if num_images == 0 else ()
                usage = images_usage(text_tokens, before, [output.size], output.token_side)
                yield self._event("completed", **head, **layer_of(output), usage=usage)
                num_images += 1

    async def whole(self, store: ImageStore, base_url: str) -> dict[str, Any]:
        """All images at once, by value or by URL."""
        images = await self.images()
        files = await asyncio.gather(*(self.encode(image) for image in images))
        if self.asked.response_format == "url":
            content_type = self.asked.encoding.content_type
            data: list[Event] = [
                {"url": base_url + store.put(file, content_type)} for file in files
            ]
        else:
            data = [{"b64_json": file} for file in files]
        data = [{**one, **layer_of(image)} for one, image in zip(data, images, strict=True)]
        usage = images_usage(
            images[0].text_tokens,
            self.given.sizes,
            [image.size for image in images],
            images[0].token_side,
        )
        return {
            "created": int(time.time()),
            **self._head(images[0]),
            "data": data,
            "usage": usage,
        }

    async def images(self) -> list[ImageOutput]:
        """All that is made, without previews."""
        async with aclosing(self.outputs()) as outputs:
            return [one async for one in outputs if one.pixels and not one.is_preview]

    async def outputs(self) -> AsyncGenerator[ImageOutput, None]:
        """Returns what leaves the graph."""
        timeline = current_trace().timeline
        async with aclosing(self.made) as outputs:
            async for output in outputs:
                assert isinstance(output, ImageOutput)
                yield output
                if output.pixels:
                    timeline.mark(GATEWAY, FIRST_IMAGE)

    async def encode(self, image: ImageOutput) -> bytes:
        """An image as the file that is asked for."""
        return await asyncio.to_thread(self.asked.encoding.encode, image)

    def _event(self, name: str, **fields: object) -> Event:
        return {"type": f"{self.prefix}.{name}", **fields}

    def _head(self, image: ImageOutput) -> dict[str, object]:
        return about(image, self.asked)


def layer_of(image: ImageOutput) -> Event:
    """Return the number of a layer, nothing of a whole image."""
    return {} if image.layer is None else {"layer": image.layer}


def about(image: ImageOutput, asked: ImageRequest) -> dict[str, object]:
    """Return what OpenAI's answers have of an image beside its file."""
    has_alpha = image.num_channels == 4 and asked.encoding.form != "jpeg"
    return {
        "background": "transparent" if has_alpha else "opaque",
        "output_format": asked.encoding.form,
        "quality": asked.made_quality,
        "size": f"{image.width}x{image.height}",
    }
