"""From the chunks of a chat to the events of a response, in OpenAI's order."""

from collections.abc import Sequence

from omnistage.server.common.errors import ApiError
from omnistage.server.responses.answer import INCOMPLETE, ResponseHead
from omnistage.server.responses.output import (
    FunctionCall,
    GeneratedImage,
    OutputItem,
    OutputMessage,
    Step,
    Thought,
)
from omnistage.server.tasks.chat.chunks import ChatChunk
from omnistage.stage_configs.json_types import Json, JsonMap

Event = Json

ABOUT_ITEMS = ("output_item.added", "output_item.done")  # these have the item itself


class ResponseEvents:
    """Makes the events of one response; one item of its output is open at a time."""

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._number = 0
        self._done: list[Json] = []
        self._open: OutputItem | None = None
        self._call_index: int | None = None  # of the open item, if it is a call: the chat's number
        self._held: list[Json] = []  # log probabilities of tokens whose text has not come
        self._finish_reason = "stop"
        self._usage: JsonMap = {}
        self.response: Json = head.response("in_progress", ())

    @property
    def has_begun(self) -> bool:
        """Returns whether the first event was made."""
        return self._number > 0

    def begin(self) -> list[Event]:
        """The response is there, with nothing in it."""
        return [
            self._event(name, {"response": self.response}) for name in ("created", "in_progress")
        ]

    def add(self, chunk: ChatChunk) -> list[Event]:
        """Returns what one chunk of the chat adds."""
        self._usage = chunk.get("usage") or self._usage
        events: list[Event] = []
        for choice in chunk["choices"]:
            self._finish_reason = choice["finish_reason"] or self._finish_reason
            delta = choice["delta"]
            self._held += (choice["logprobs"] or {}).get("content") or ()
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            if thought:
                self._held = []
                events += self._think(thought)
            if delta.get("content"):
                events += self._say(delta["content"])
            for call in delta.get("tool_calls", ()):
                self._held = []
                events += self._call(call)
        return events

    def begin_image(self) -> list[Event]:
        """An image is begun, unless it was before."""
        return [] if isinstance(self._open, GeneratedImage) else self._begin(GeneratedImage())

    def preview(self, file: str, about: Json) -> list[Event]:
        """A preview of the image, in base64."""
        events = self.begin_image()
        assert isinstance(self._open, GeneratedImage)
        return events + self._told(self._open.preview(file, about))

    def image(self, file: str, about: Json) -> list[Event]:
        """The image itself, in base64."""
        events = self.begin_image()
        assert isinstance(self._open, GeneratedImage)
        self._open.take(file, about)
        return events + self._end("completed")

    def finish(self) -> list[Event]:
        """Returns what is left when the chat has ended."""
        events = []
        if not self._done and self._open is None:
            events += self._begin(OutputMessage())
        is_cut = self._finish_reason in INCOMPLETE
        events += self._end("incomplete" if is_cut else "completed")
        self.response = self._head.ended(self._done, self._finish_reason, self._usage)
        return [*events, self._event(self.response["status"], {"response": self.response})]

    def fail(self, error: ApiError) -> list[Event]:
        """The end of a response that failed."""
        events = [] if self.has_begun else self.begin()
        output = list(self._done)
        if self._open is not None:
            output.append(self._open.item("incomplete"))
        self.response = self._head.failed(output, error)
        return [*events, self._event("failed", {"response": self.response})]

    def _think(self, text: str) -> list[Event]:
        events = [] if isinstance(self._open, Thought) else self._begin(Thought())
        assert isinstance(self._open, Thought)
        return events + self._told(self._open.add(text))

    def _say(self, text: str) -> list[Event]:
        events = [] if isinstance(self._open, OutputMessage) else self._begin(OutputMessage())
        assert isinstance(self._open, OutputMessage)
        logprobs, self._held = self._held, []
        return events + self._told(self._open.add(text, logprobs))

    def _call(self, call: JsonMap) -> list[Event]:
        function = call.get("function") or {}
        events = []
        if not isinstance(self._open, FunctionCall) or self._call_index != call["index"]:
            events = self._begin(FunctionCall(call.get("id") or "", function.get("name") or ""))
            self._call_index = call["index"]
        assert isinstance(self._open, FunctionCall)
        arguments = function.get("arguments")
        return events + (self._told(self._open.add(arguments)) if arguments else [])

    def _begin(self, item: OutputItem) -> list[Event]:
        """End the item that is open, and open another."""
        events = self._end("completed")
        self._open = item
        return events + self._told(item.begin())

    def _end(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        events = self._told(self._open.end(status))
        self._done.append(self._open.item(status))
        self._open = None
        return events

    def _told(self, steps: Sequence[Step]) -> list[Event]:
        """Steps of the open item as events."""
        assert self._open is not None
        place = {"output_index": len(self._done)}
        named = {**place, "item_id": self._open.id}
        return [
            self._event(name, {**(place if name in ABOUT_ITEMS else named), **said})
            for name, said in steps
        ]

    def _event(self, name: str, said: Json) -> Event:
        event = {"type": f"response.{name}", "sequence_number": self._number, **said}
        self._number += 1
        return event
