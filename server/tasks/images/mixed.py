"""Chats answered by words, or speech, and an image that a stage draws of the words."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from omnistage.server.common.fields import parse
from omnistage.server.media.images import Encoding, InputImages
from omnistage.server.runtime.request import ImageOutput, Output
from omnistage.server.tasks.chat.chunks import (
    AnswerChunks,
    AnswerHead,
    ChatChunk,
    choice_of,
    ending_of,
    says_something,
)
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.images.schema import ImageRequest
from omnistage.server.tasks.images.usage import with_image
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_gateway import TOKEN_SIDE

# Of an image request's fields, those that a chat has itself, and those that have no meaning in one.
NOT_HERE = frozenset(
    {"prompt", "n", "model", "seed", "stream"}
    | {"partial_images", "stream_progress", "response_format"}
)
FIELDS = ImageRequest.model_fields.keys() - NOT_HERE
DRAWN = "-"  # stands for the prompt, which is not written yet


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of the image that a chat's answer has."""

    encoding: Encoding
    body: Draw  # as the stage that draws reads it, but for the prompt

    @classmethod
    def of(cls, chat: ChatRequest) -> "Wish":
        """From the chat's fields of that name; raises ApiError."""
        said = {name: value for name, value in chat if name in FIELDS & chat.model_fields_set}
        asked = parse(ImageRequest, {**said, "prompt": DRAWN})
        fields = dict(asked.to_request(InputImages()).message.fields)
        del fields["prompt"]
        return cls(asked.encoding, Draw(fields))


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image of the answer as a client gets it; `thought`: what was thought before it."""

    url: str
    size: tuple[int, int]
    token_side: int
    thought: str = ""


async def with_files(
    outputs: AsyncGenerator[Output, None], encoding: Encoding
) -> AsyncGenerator[Output | ImageFile, None]:
    """The same outputs with images as files; steps are left out."""
    async with aclosing(outputs):
        async for output in outputs:
            if not isinstance(output, ImageOutput):
                yield output
            elif output.pixels:
                file = await asyncio.to_thread(encoding.encode, output)
                data = base64.b64encode(file).decode("ascii")
                url = f"data:{encoding.content_type};base64,{data}"
                yield ImageFile(url, output.size, output.token_side, output.thought)


def thought_of(image: ImageFile | ImageOutput) -> dict[str, str]:
    """Return the thought before an image by vLLM's name and by its older one; none: no fields."""
    names = ("reasoning", "reasoning_content")
    return dict.fromkeys(names, image.thought) if image.thought else {}


class MixedChunks:
    """The chunks of an answer of words or speech, and of its image; its end comes last."""

    def __init__(self, said: AnswerChunks) -> None:
        self.said = said
        self._sizes: list[tuple[int, int]] = []
        self._token_side = TOKEN_SIDE
        self._is_opened = False
        self._ending: ChatChunk | None = None

    @property
    def head(self) -> AnswerHead:
        """Returns what every chunk says alike."""
        return self.said.head

    def chunks_of(self, output: Output | ImageFile) -> list[ChatChunk]:
        """Returns what one output adds."""
        if isinstance(output, ImageFile):
            return [self._image(output)]
        chunks = [self._without_end(chunk) for chunk in self.said.chunks_of(output)]
        said = [chunk for chunk in chunks if chunk["choices"]]
        self._is_opened |= bool(said)
        return said

    def _image(self, image: ImageFile) -> ChatChunk:
        role = {} if self._is_opened else {"role": "assistant", "content": None}
        self._is_opened = True
        self._sizes.append(image.size)
        self._token_side = image.token_side
        item = {"index": 0, "type": "image_url", "image_url": {"url": image.url}}
        return self.head.chunk([choice_of({**role, **thought_of(image), "images": [item]})])

    def _without_end(self, chunk: ChatChunk) -> ChatChunk:
        """Returns what comes with the end of the words goes at once, the end itself after the
        image.
        """
        for choice in chunk["choices"]:
            if choice["finish_reason"]:
                self._ending = ending_of(choice)
            choice["finish_reason"] = None
            choice.pop("stop_reason", None)
        chunk["choices"] = [choice for choice in chunk["choices"] if says_something(choice)]
        return chunk

    def finish(self) -> list[ChatChunk]:
        """Why the answer ended, and the usage with the image's tokens."""
        *rest, last = self.said.finish()
        if self._ending is not None:
            rest.append(self.head.chunk([{**choice_of({}), **self._ending}]))
        usage = with_image(last["usage"], self._sizes, self._token_side)
        return [*rest, {**last, "usage": usage}]
