"""Chats that are answered by images: the last text of the user says what is in them."""

from collections.abc import Mapping, Sequence

from omnistage.server.common.errors import invalid
from omnistage.server.common.served import check_model, made_by
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import checked_part
from omnistage.server.tasks.chat.messages import ROLES
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.images.schema import EditRequest
from omnistage.stage_configs.graph import StageGraph

MODALITIES = ({"image"}, {"text", "image"})
# What has a meaning here; of an image request's fields, those that a chat cannot have.
READ = {"messages", "model", "modalities", "stream", "stream_options"}
NOT_HERE = {"prompt", "partial_images", "stream_progress", "response_format"}


class ImageChatRequest(EditRequest):
    """The image options of a chat."""

    ignored = EditRequest.ignored | ChatRequest.ignored


def check_image_chat(chat: ChatRequest, graph: StageGraph) -> None:
    """Raise ApiError for a chat that this graph cannot answer by images."""
    check_model(chat.model, graph.served_names)
    if set(chat.modalities or ("image",)) not in MODALITIES:
        raise invalid("modalities", 'must be ["image"] or ["text", "image"] for images')
    if "image" not in graph.outputs:
        makes = made_by(graph.outputs)
        raise invalid("modalities", f"asks for image; this model makes {makes}")
    if chat.stream_options is not None and not chat.stream:
        raise invalid("stream_options", "is only allowed when stream is true")


def image_fields_of(chat: ChatRequest) -> dict[str, object]:
    """The fields of a chat that are not the chat's own."""
    said = chat.model_fields_set - READ - NOT_HERE
    return {name: value for name, value in chat if name in said}


def last_user_prompt(messages: Sequence[Mapping[str, object]]) -> tuple[str, list[Medium]]:
    """The text of the user's last message, and the images in it.

    What comes before it has no effect: it may have our own images and no content.
    """
    for number, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise invalid(f"messages[{number}].role", f"must be one of {', '.join(ROLES)}")
    index = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=None)
    if index is None:
        raise invalid("messages", "must have one of the user")
    place = f"messages[{index}].content"
    content = messages[index].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise invalid(place, "must be a string or a list of parts")
    texts, media = [], []
    for number, given in enumerate(parts):
        path = f"{place}[{number}]"
        part = checked_part(given, path)
        if part["type"] == "text":
            texts.append(part["text"])
        elif part["type"] == "image_url":
            media.append(Medium.of_part(part, path))
        else:
            raise invalid(path, "must be text or a picture for images")
    prompt = "\n".join(texts)
    if not prompt:
        raise invalid(place, "must have a text that says what is wanted")
    return prompt, media
