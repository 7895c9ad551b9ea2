"""A response's calls of functions, from a chat's deltas to events."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.items import Item
from omnistage.stage_configs.json_types import Json, JsonMap

EVENT = "response.function_call_arguments"


@dataclass(slots=True)
class FunctionCallProgress:
    """A call of a function as far as it has come; it has an item once it has begun."""

    name: str = ""
    item: Item | None = None
    output_index: int = 0
    _pieces: list[str] = field(default_factory=list)  # of the arguments, not told yet

    def add(self, function: JsonMap) -> None:
        """Add a chat's delta: pieces of the name and of the arguments."""
        self.name += function.get("name") or ""
        if function.get("arguments"):
            self._pieces.append(function["arguments"])

    def begin(self) -> Item:
        """Make its item, whose ids are ours: vLLM's are longer than clients take."""
        item = self.item = Item(new_id("item"), "function_call", "in_progress", "assistant")
        item.call_id, item.name = new_id("call"), self.name
        return item

    def deltas(self, response_id: str) -> Iterator[Json]:
        """Yield an event for each piece that has not been told, if it has begun."""
        if self.item is None:
            return
        for piece in self._pieces:
            self.item.text += piece
            yield {"type": f"{EVENT}.delta", **self._place(response_id), "delta": piece}
        self._pieces.clear()

    def done(self, response_id: str) -> Json:
        """Return the event that ends it."""
        assert self.item is not None
        whole = {"name": self.item.name, "arguments": self.item.text}
        return {"type": f"{EVENT}.done", **self._place(response_id), **whole}

    def _place(self, response_id: str) -> Json:
        assert self.item is not None
        place = {"response_id": response_id, "item_id": self.item.id}
        return {**place, "output_index": self.output_index, "call_id": self.item.call_id}
