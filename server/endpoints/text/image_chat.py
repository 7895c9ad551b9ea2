"""Chats that are answered by images: the last text of the user says what is in them."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from fastapi import Request as HttpRequest
from fastapi import Response

from omnistage.server.common.fields import parse, warning_headers
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.request import HttpCaller
from omnistage.server.http.sse import EventStream
from omnistage.server.http.whole_answer import whole_answer
from omnistage.server.runtime.request import ImageOutput
from omnistage.server.tasks.chat.chunks import AnswerHead, ChatChunk, choice_of
from omnistage.server.tasks.chat.completion import Completion
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.image_chat import (
    NOT_HERE,
    ImageChatRequest,
    check_image_chat,
    image_fields_of,
    last_user_prompt,
)
from omnistage.server.tasks.image_task import run_images
from omnistage.server.tasks.images.answer import MAX_UNSENT_BYTES, ImageAnswer
from omnistage.server.tasks.images.mixed import thought_of
from omnistage.server.tasks.images.usage import chat_usage


@dataclass(frozen=True, slots=True)
class ImageChat:
    """Answers chats with `message.images` or `delta.images`; each of `n` choices has one."""

    gateway: Gateway

    async def create(self, chat: ChatRequest, http: HttpRequest) -> Response:
        """Validate and admit, then stream or collect."""
        check_image_chat(chat, self.gateway.runtime.graph)
        caller = HttpCaller(http)
        prompt, media = await caller.compute(lambda: last_user_prompt(chat.messages))
        asked = parse(ImageChatRequest, {**image_fields_of(chat), "prompt": prompt})
        request_id = f"chatcmpl-{uuid4().hex}"
        running = await run_images(self.gateway, asked, caller, media, request_id=request_id)
        answer = ImageAnswer("chat", asked, running.given, running.outputs)
        head = AnswerHead(request_id, self.gateway.runtime.graph.served_name)
        headers = warning_headers(sorted([*asked.unknown, *(chat.model_fields_set & NOT_HERE)]))
        if not chat.stream:
            return await whole_answer(http, request_id, completion(answer, head), headers)
        has_usage = chat.stream_options is not None and chat.stream_options.include_usage
        events = chunks(answer, head, has_usage)
        return EventStream(events, self.gateway.options.keep_alive_s, MAX_UNSENT_BYTES, headers)


async def completion(answer: ImageAnswer, head: AnswerHead) -> ChatChunk:
    """The whole answer."""
    images = await answer.images()
    deltas = await asyncio.gather(*(_delta(answer, image) for image in images))
    choices = [choice_of(delta, "stop", index) for index, delta in enumerate(deltas)]
    whole = Completion()
    whole.add(head.chunk(choices, usage=_usage(answer, images)))
    return whole.to_text()


async def chunks(
    answer: ImageAnswer, head: AnswerHead, has_usage: bool
) -> AsyncGenerator[ChatChunk, None]:
    """The streamed answer; it begins when the first step is done, so a refusal is still one."""
    more: Mapping[str, Any] = {"usage": None} if has_usage else {}
    images: list[ImageOutput] = []
    is_opened = False
    async with aclosing(answer.outputs()) as outputs:
        async for output in outputs:
            if not is_opened:
                is_opened = True
                for index in range(answer.asked.n or 1):
                    opening = choice_of({"role": "assistant", "content": None}, index=index)
                    yield head.chunk([opening], **more)
            if output.pixels:
                index = len(images)
                images.append(output)
                delta = await _delta(answer, output)
                yield head.chunk([choice_of(delta, index=index)], **more)
                yield head.chunk([choice_of({}, "stop", index)], **more)
    if has_usage:
        yield head.chunk([], usage=_usage(answer, images))


async def _delta(answer: ImageAnswer, image: ImageOutput) -> ChatChunk:
    """Returns an image, with the thought before it."""
    file = base64.b64encode(await answer.encode(image)).decode("ascii")
    url = f"data:{answer.asked.encoding.content_type};base64,{file}"
    item = {"index": 0, "type": "image_url", "image_url": {"url": url}}
    return {**thought_of(image), "images": [item]}


def _usage(answer: ImageAnswer, images: list[ImageOutput]) -> ChatChunk:
    sizes = [image.size for image in images]
    first = images[0]
    return chat_usage(first.text_tokens, answer.given.sizes, sizes, first.token_side)
