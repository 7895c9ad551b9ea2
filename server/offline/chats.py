"""Chats, from the fields of a body of /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.offline.content import Messages
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.errors import OmniError
from omnistage.server.offline.fields import said, warn_of
from omnistage.server.offline.many import Prompt, answer_all, fields_of, progress_bar
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_answer import answer_chat
from omnistage.server.tasks.pieces import Answer


async def chat(engine: Engine, fields: Mapping[str, object]) -> Pieces:
    """Answer a conversation: with text, speech or images."""
    asked = parse(ChatRequest, await said(fields))
    if asked.stream is not None or asked.stream_options is not None:
        raise invalid("stream", "is of HTTP; use stream_chat")
    async with aclosing(answer_chat(engine.service, asked, on_unknown=warn_of)) as pieces:
        async for piece in pieces:
            yield piece


async def chats(
    engine: Engine, prompts: Sequence[Prompt], common: Mapping[str, object], progress: bool | None
) -> list[Answer | OmniError]:
    """Answer many, in their order; an error is in the place of an answer that failed."""

    async def ask(prompt: Prompt) -> Answer:
        return await engine.whole(chat(engine, fields_of(prompt, common)))

    is_shown = engine.options.progress if progress is None else progress
    with progress_bar(len(prompts), is_shown) as on_done:
        return await answer_all([partial(ask, one) for one in prompts], on_done)


def chat_fields(
    messages: Messages | None,
    modalities: Sequence[str] | None,
    voice: str | None,
    fields: Mapping[str, object],
) -> dict[str, object]:
    """The fields of a chat's body; those that are None are left out later."""
    said = {**fields, "messages": messages}
    if modalities is not None:
        said["modalities"] = list(modalities)
    if voice is not None:
        audio = fields.get("audio") or {}
        said["audio"] = {**audio, "voice": voice} if isinstance(audio, Mapping) else audio
    return said
