"""Requests to OmniGen2 over HTTP: drawings, and chats that are answered by words or a picture."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import httpx
from references.omnigen2_drawings import STEPS, Drawing
from support.media.pictures import file_of, pixels_of
from support.oracles.omnigen2 import Pictures
from support.servers.server import TinyServer, decoded


def fields_of(drawing: Drawing) -> dict[str, Any]:
    """Return the fields of a request for a drawing."""
    fields = {"prompt": drawing.prompt, "seed": drawing.seed, "num_inference_steps": STEPS}
    arguments = dict(drawing.arguments)
    if "num_images_per_prompt" in arguments:
        fields["n"] = arguments.pop("num_images_per_prompt")
    if "image_guidance_scale" in arguments:
        fields["extra"] = {"image_guidance_scale": arguments.pop("image_guidance_scale")}
    if drawing.size is not None:
        fields["size"] = "{}x{}".format(*drawing.size)
    return fields | arguments


async def draw(server: TinyServer, drawing: Drawing) -> httpx.Response:
    """Ask for a drawing, with its images as files."""
    fields = fields_of(drawing)
    async with httpx.AsyncClient(timeout=600) as client:
        if not drawing.given:
            return await client.post(f"{server.url}/v1/images/generations", json=fields)
        files = [("image[]", ("a.png", file_of(one), "image/png")) for one in drawing.images]
        form = {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
        return await client.post(f"{server.url}/v1/images/edits", data=form, files=files)


def messages_of(chat: Drawing) -> list[Any]:
    """Return the conversation of a chat: its images, then its words."""
    parts: list[Any] = [
        {"type": "image_url", "image_url": {"url": url_of(file_of(one))}} for one in chat.images
    ]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": chat.prompt}]}]


def url_of(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


async def chat_with(server: TinyServer, messages: Sequence[Any], **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=600) as client:
        body = chat_body(messages, **more)
        return await client.post(f"{server.url}/v1/chat/completions", json=body)


def chat_body(messages: Sequence[Any], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "modalities": ["text", "image"], "skip_special_tokens": False}
    return body | {"temperature": 0, "max_tokens": 256, "num_inference_steps": STEPS, **more}


async def answered(server: TinyServer, messages: Sequence[Any], **more: Any) -> Any:
    """Return the message that answers a chat; its special tokens are shown."""
    return (await choice(server, messages, **more))["message"]


async def choice(server: TinyServer, messages: Sequence[Any], **more: Any) -> Any:
    """Return the choice that answers a chat: its message, and its tokens if they are wanted."""
    found = await chat_with(server, messages, **more)
    assert found.status_code == 200, found.text
    return found.json()["choices"][0]


def drawn_in(message: Any) -> list[Pictures]:
    urls = [one["image_url"]["url"] for one in message.get("images") or ()]
    return [pixels_of(url.partition(",")[2]) for url in urls]


def chat_fields(chat: Drawing) -> dict[str, Any]:
    fields: dict[str, Any] = {"seed": chat.seed}
    return fields if chat.size is None else {**fields, "size": "{}x{}".format(*chat.size)}


async def streamed(server: TinyServer, messages: Sequence[Any], **more: Any) -> Any:
    """Return what `choice` does, put together of what is streamed, with `num_pieces` of words."""
    told: dict[str, Any] = {"message": {"images": []}, "token_ids": [], "num_pieces": 0}
    said, body = "", chat_body(messages, stream=True, **more)
    async with (
        httpx.AsyncClient(timeout=600) as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as found,
    ):
        assert found.status_code == 200, await found.aread()
        async for line in found.aiter_lines():
            for one in decoded(line)["choices"] if line.startswith("data: {") else ():
                said += one["delta"].get("content") or ""
                told["num_pieces"] += bool(one["delta"].get("content"))
                told["message"]["images"] += one["delta"].get("images") or ()
                told["token_ids"] += one.get("token_ids") or ()
                told["finish_reason"] = one["finish_reason"]
    told["message"]["content"] = said
    return told
