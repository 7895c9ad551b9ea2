"""Chats, from the fields of a body of /v1/chat/completions."""

from collections.abc import Mapping
from contextlib import aclosing

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import answer_chat


async def chat(engine: Engine, fields: Mapping[str, object]) -> Pieces:
    """Answer a conversation: with text, speech or images."""
    asked = parse(ChatRequest, await said(fields))
    if asked.stream is not None or asked.stream_options is not None:
        raise invalid("stream", "is of HTTP; use stream_chat")
    async with aclosing(answer_chat(engine.service, asked, on_unknown=warn_of)) as pieces:
        async for piece in pieces:
            yield piece
