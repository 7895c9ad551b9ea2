"""The items of a response's output while they are made: what each says when it begins and ends.

A step is the name of an event, without `response.`, and what the event says beside where it is.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import uuid4

from omnistage.stage_configs.json_types import Json

Step = tuple[str, Json]

IN_PROGRESS = "in_progress"


class OutputItem(Protocol):
    """One item; all steps but those about the item itself name it."""

    id: str

    def begin(self) -> list[Step]:
        """It is there, with nothing in it."""

    def end(self, status: str) -> list[Step]:
        """It is whole, or as whole as it will be."""

    def item(self, status: str) -> Json:
        """The item as it is now."""


class OutputMessage:
    """A message of the model."""

    def __init__(self) -> None:
        self.id = f"msg_{uuid4().hex}"
        self._text = ""
        self._logprobs: list[Json] = []

    def begin(self) -> list[Step]:
        """The message, and its only part."""
        part = {"content_index": 0, "part": self._part()}
        return [
            ("output_item.added", {"item": self._item(IN_PROGRESS, [])}),
            ("content_part.added", part),
        ]

    def add(self, text: str, logprobs: Sequence[Json]) -> list[Step]:
        """A piece of the text."""
        self._text += text
        self._logprobs += logprobs
        return [
            (
                "output_text.delta",
                {"content_index": 0, "delta": text, "logprobs": list(logprobs)},
            )
        ]

    def end(self, status: str) -> list[Step]:
        """The whole text, its part, and the message."""
        whole = {"content_index": 0, "text": self._text, "logprobs": self._logprobs}
        return [
            ("output_text.done", whole),
            ("content_part.done", {"content_index": 0, "part": self._part()}),
            ("output_item.done", {"item": self.item(status)}),
        ]

    def item(self, status: str) -> Json:
        """With its text as far as it has come."""
        return self._item(status, [self._part()])

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part(self) -> Json:
        return {
            "type": "output_text",
            "text": self._text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }


class Thought:
    """The model's thoughts before it answers."""

    def __init__(self) -> None:
        self.id = f"rs_{uuid4().hex}"
        self._text = ""

    def begin(self) -> list[Step]:
        """The item, and its only part."""
        return [
            ("output_item.added", {"item": self._item(IN_PROGRESS, [])}),
            ("content_part.added", {"content_index": 0, "part": self._part()}),
        ]

    def add(self, text: str) -> list[Step]:
        """A piece of it."""
        self._text += text
        return [("reasoning_text.delta", {"content_index": 0, "delta": text})]

    def end(self, status: str) -> list[Step]:
        """The whole thought, its part, and the item."""
        return [
            ("reasoning_text.done", {"content_index": 0, "text": self._text}),
            ("content_part.done", {"content_index": 0, "part": self._part()}),
            ("output_item.done", {"item": self.item(status)}),
        ]

    def item(self, status: str) -> Json:
        """With its text as far as it has come."""
        return self._item(status, [self._part()])

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": content,
        }

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": self._text}


class FunctionCall:
    """A function that the model wants to be called."""

    def __init__(self, call_id: str, name: str) -> None:
        self.id = f"fc_{uuid4().hex}"
        self._call_id = call_id
        self._name = name
        self._arguments = ""

    def begin(self) -> list[Step]:
        """The call, without arguments."""
        return [("output_item.added", {"item": self.item(IN_PROGRESS)})]

    def add(self, arguments: str) -> list[Step]:
        """A piece of the arguments."""
        self._arguments += arguments
        return [("function_call_arguments.delta", {"delta": arguments})]

    def end(self, status: str) -> list[Step]:
        """The whole arguments, and the call."""
        whole = {"name": self._name, "arguments": self._arguments}
        return [
            ("function_call_arguments.done", whole),
            ("output_item.done", {"item": self.item(status)}),
        ]

    def item(self, status: str) -> Json:
        """With its arguments as far as they have come."""
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._arguments,
            "status": status,
        }


class GeneratedImage:
    """An image that is made; what is known of it beside its file is known when it is there."""

    def __init__(self) -> None:
        self.id = f"ig_{uuid4().hex}"
        self._num_previews = 0
        self._file: str | None = None
        self._about: Json = {}

    def begin(self) -> list[Step]:
        """The call, and that the model is at it."""
        return [
            ("output_item.added", {"item": self.item(IN_PROGRESS)}),
            ("image_generation_call.in_progress", {}),
            ("image_generation_call.generating", {}),
        ]

    def preview(self, file: str, about: Json) -> list[Step]:
        """The image as it would be if it ended now, in base64."""
        number = {"partial_image_index": self._num_previews, "partial_image_b64": file}
        self._num_previews += 1
        return [("image_generation_call.partial_image", {**number, **about})]

    def take(self, file: str, about: Json) -> None:
        """Have the image, in base64."""
        self._file, self._about = file, about

    def end(self, status: str) -> list[Step]:
        """The image, as an item."""
        return [
            ("image_generation_call.completed", {}),
            ("output_item.done", {"item": self.item(status)}),
        ]

    def item(self, status: str) -> Json:
        """With its file once it is there; one that will not come has failed."""
        return {
            "id": self.id,
            "type": "image_generation_call",
            "status": "failed" if status == "incomplete" else status,
            "result": self._file,
            **self._about,
        }
