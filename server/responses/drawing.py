"""The image of a response, while it is made: its events, and what it is counted as."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

from omnistage.server.media.medium import Medium
from omnistage.server.responses.events import Event, ResponseEvents
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.tasks.chat.chunks import ChatChunk
from omnistage.server.tasks.images.answer import about
from omnistage.server.tasks.images.schema import EditRequest
from omnistage.server.tasks.images.usage import Size, chat_usage, with_image
from omnistage.stages.messages.to_gateway import TOKEN_SIDE


@dataclass(slots=True)
class Drawing:
    """The drawing of a response; `is_alone` if the model makes nothing but images."""

    asked: EditRequest
    is_alone: bool
    images: Sequence[Medium] = ()  # to edit
    mask: Medium | None = None
    given: Sequence[Size] = ()
    made: list[Size] = field(default_factory=list)
    text_tokens: int = 0
    token_side: int = TOKEN_SIDE

    async def add(self, output: ImageOutput, events: ResponseEvents) -> list[Event]:
        """Return the events of a step, a preview or an image.

        Beside a text a step begins nothing: more of the text may come.
        """
        if not output.pixels:
            return events.begin_image() if self.is_alone else []
        file = await asyncio.to_thread(self.asked.encoding.encode, output)
        encoded = base64.b64encode(file).decode("ascii")
        if output.is_preview:
            return events.preview(encoded, about(output, self.asked))
        self.made.append(output.size)
        self.token_side = output.token_side
        self.text_tokens += output.text_tokens
        return events.image(encoded, about(output, self.asked))

    def counted(self, chunk: ChatChunk) -> ChatChunk:
        """Return the last chunk of a chat with the usage of its image."""
        if self.is_alone:
            usage = chat_usage(self.text_tokens, self.given, self.made, self.token_side)
            return {**chunk, "usage": usage}
        return {**chunk, "usage": with_image(chunk["usage"], self.made, self.token_side)}
