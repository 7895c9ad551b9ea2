"""An answer's words on their way to the stages that make something of them."""

import json
import time
from collections.abc import Iterable

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.messages.edge import NothingToSay, Open, ReleasedWords, Waits
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import StagePorts

IMAGE_TOOL = "generate_image"
PROMPT = "prompt"  # its argument


class ReleasedText:
    """One answer's text, along every live edge that carries text, as it is released to the client.

    Where the request allows the tool `generate_image`, what goes is the argument `prompt` of its
    first call instead, once the answer is complete. Reasoning does not go.
    """

    def __init__(self, request_id: str, request: Request, ports: StagePorts) -> None:
        self._id = request_id
        self._request = request.with_body(request.image)
        self._edges = ports.live(request, Payload.TEXT)
        self._call = ImageCall() if allows_image_tool(request.fields) else None
        self._num_sent = 0
        self._told_at = time.monotonic()
        self._quiet_s = ports.deadlines.next_chunk_s / 2

    def open(self) -> None:
        """Announce the request."""
        for edge in self._edges:
            edge.announce(self._id, Open(self._request))

    def add(self, chunk: JsonMap) -> None:
        """Take one chunk of the answer.

        While it thinks, or calls a tool, the stages that wait hear that it goes on.
        """
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            if self._call is not None:
                self._call.add(delta.get("tool_calls") or ())
            elif delta.get("content"):
                self._send(delta["content"])
        if time.monotonic() - self._told_at > self._quiet_s:
            self.show_life()

    def _send(self, text: str, last: bool = False) -> None:
        for edge in self._edges:
            edge.feed.send(Chunk(self._id, ReleasedWords(text), self._num_sent, last=last))
        self._num_sent += 1
        self._told_at = time.monotonic()

    def show_life(self) -> None:
        """More will come: we wait for our client, or for what is no text."""
        self._told_at = time.monotonic()
        for edge in self._edges:
            edge.announce(self._id, Waits())

    def finish(self) -> None:
        """The answer is complete."""
        if self._call is not None and (prompt := self._call.prompt):
            self._send(prompt)
        if not self._num_sent:
            for edge in self._edges:
                edge.announce(self._id, NothingToSay())
        self._send("", last=True)


class ImageCall:
    """The first call of the tool `generate_image`, from its pieces."""

    def __init__(self) -> None:
        self._index: int | None = None
        self._arguments = ""

    def add(self, calls: Iterable[JsonMap]) -> None:
        """Take the pieces of calls that one chunk has; a call's name is in its first piece."""
        for call in calls:
            function = call.get("function") or {}
            if self._index is None and function.get("name") == IMAGE_TOOL:
                self._index = call.get("index", 0)
            if self._index is not None and call.get("index", 0) == self._index:
                self._arguments += function.get("arguments") or ""

    @property
    def prompt(self) -> str:
        """Returns what is wanted; nothing if the tool was not called, or not as it should be."""
        try:
            given = json.loads(self._arguments or "{}")
        except ValueError:
            return ""
        prompt = given.get(PROMPT) if isinstance(given, dict) else None
        return prompt if isinstance(prompt, str) else ""


def allows_image_tool(body: JsonMap) -> bool:
    """Returns whether a chat's answer may call the tool."""
    if body.get("tool_choice") == "none":
        return False
    return any(
        (tool.get("function") or {}).get("name") == IMAGE_TOOL for tool in body.get("tools") or ()
    )
