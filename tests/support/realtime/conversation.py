"""Items of a conversation."""

from omnistage.server.realtime.conversation import Conversation
from omnistage.server.realtime.items import Item, Part, item_of
from omnistage.server.realtime.playout import PlayedAnswer


def text(words: str, item_id: str, role: str = "user") -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": words}]
    return item_of({"id": item_id, "role": role, "content": content}, "audio/pcm")


def of(*ids: str, **bounds: int) -> Conversation:
    conversation = Conversation(**bounds)
    for item_id in ids:
        conversation.add(text(item_id, item_id))
    return conversation


def ids(conversation: Conversation) -> str:
    return "".join(item.id for item in conversation)


def answer(words: str, ms: float, item_id: str = "answer") -> Item:
    pieces = [piece + " " for piece in words.split()] or [words]
    spoken = PlayedAnswer(pieces, ms)
    return Item(item_id, role="assistant", content=[Part("output_audio", spoken=spoken)])
