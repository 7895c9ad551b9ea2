"""A session's items in their order, bounded, and the chat that they are."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.options.bounds import DEFAULT_BOUNDS
from omnistage.server.realtime.items import Item, not_found
from omnistage.server.responses.items import ConversationMessages as Messages
from omnistage.server.responses.places import Places
from omnistage.stage_configs.json_types import Json

MAX_ITEMS = 512
ROOT = "root"  # in place of the id before the first


class Conversation:
    """Items of one session; the oldest are forgotten where more come than there is room for."""

    def __init__(
        self, max_bytes: int = DEFAULT_BOUNDS.max_bytes, max_items: int = MAX_ITEMS
    ) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: list[Item] = []
        self._start: str | None = None  # the first item of the context; None: of all

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __contains__(self, item_id: str) -> bool:
        return any(item.id == item_id for item in self._items)

    @property
    def num_bytes(self) -> int:
        """How much memory the items take, about."""
        return sum(item.num_bytes for item in self._items)

    def check_new(self, item: Item, after: str | None = None) -> None:
        """Raise ApiError for an item that `add` would refuse."""
        if item.id in self:
            message = f"Error adding item: the item with id '{item.id}' already exists."
            raise ApiError(400, message, param="item.id", code="item_create_duplicate_item_id")
        if after not in (None, ROOT) and after not in self:
            problem = f"names no item of the conversation: {after!r}"
            raise invalid("previous_item_id", problem)
        if item.num_bytes > self._max_bytes:
            message = f"The item has more than {self._max_bytes >> 20} MiB."
            raise ApiError(400, message, param="item", code="item_too_large")

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Add an item behind another, the last, or `root`; returns the id before it. ApiError."""
        self.check_new(item, after)
        place = len(self._items)
        if after == ROOT:
            place = 0
        elif after is not None:
            place = 1 + self._index(after)
        self._items.insert(place, item)
        self._make_room(item)
        self._keep_read()
        return self.previous_of(item.id)

    def _make_room(self, kept: Item) -> None:
        """Forget the oldest items while there are too many, instructions of a system last."""
        while len(self._items) > self._max_items or self.num_bytes > self._max_bytes:
            others = [item for item in self._items if item is not kept]
            oldest = next((item for item in others if item.role != "system"), others[0])
            self._remove(oldest)

    def _keep_read(self) -> None:
        """Keep what stages got of the newest audio for the next answer, as far as there is room."""
        free = self._max_bytes - self.num_bytes
        for item in reversed(self._items):
            for sound in item.sounds:
                free -= sound.read_bytes
                sound.keep_read(free >= 0)

    @property
    def context(self) -> list[Item]:
        """Return the items that the model gets: all, or those that `shorten` left."""
        place = self._context_place
        before = [item for item in self._items[:place] if item.role == "system"]
        return [*before, *self._items[place:]]

    @property
    def _context_place(self) -> int:
        places = (place for place, item in enumerate(self._items) if item.id == self._start)
        return next(places, 0)

    def shorten(self, weight: Callable[[Sequence[Item]], float], most: float) -> bool:
        """Leave the oldest turns out of the context, until it weighs at most so much.

        At least one goes, and the last one stays: returns False if there is no other. A turn is
        what follows messages of the user, with these.
        """
        place = self._context_place
        said = [item.type == "message" and item.role == "user" for item in self._items]
        turns = [
            at for at in range(place, len(said)) if said[at] and (at == place or not said[at - 1])
        ]
        if len(turns) < 2:
            return False
        for at in turns[1:]:
            self._start = self._items[at].id
            if weight(self.context) <= most:
                break
        return True

    def previous_of(self, item_id: str) -> str | None:
        """Return the id of the item before one; None if that is the first, or is not there."""
        previous = None
        for item in self._items:
            if item.id == item_id:
                return previous
            previous = item.id
        return None

    def get(self, item_id: str) -> Item:
        """Return an item that is asked for; raises ApiError."""
        return self._found(item_id, "retrieving", "item_retrieve_invalid_item_id")

    def find(self, item_id: str) -> Item | None:
        """Return an item, if it is there."""
        return next((item for item in self._items if item.id == item_id), None)

    def delete(self, item_id: str) -> None:
        """Remove an item; raises ApiError."""
        item = self._found(item_id, "deleting", "item_delete_invalid_item_id")
        self._remove(item)

    def _remove(self, item: Item) -> None:
        place = self._items.index(item)
        self._items.remove(item)
        if item.id == self._start:
            self._start = self._items[place].id if place < len(self._items) else None

    def truncate(self, item_id: str, content_index: int, end_ms: int) -> None:
        """Keep of an answer what was heard; raises ApiError."""
        item = self._found(item_id, "truncating", "item_truncate_invalid_item_id")
        part = item.content[content_index] if content_index < len(item.content) else None
        if part is None or part.type != "output_audio":
            problem = "names no audio of the model's" if part is not None else "names no part"
            raise invalid("content_index", problem)
        if part.spoken is None:  # replayed by the client: its length is not known
            return
        if not part.spoken.allows(end_ms):
            message = f"Audio content of {part.spoken.ms:.0f}ms is already shorter than {end_ms}ms"
            raise ApiError(400, message, param="audio_end_ms", code="invalid_value")
        part.spoken.truncate(end_ms)

    def _found(self, item_id: str, verb: str, code: str) -> Item:
        item = self.find(item_id)
        if item is None:
            raise not_found(verb, code, item_id)
        return item

    def _index(self, item_id: str) -> int:
        return next(place for place, item in enumerate(self._items) if item.id == item_id)


def messages_of(items: Iterable[Item], instructions: str, hears: bool = True) -> Sequence[Json]:
    """Return items as the messages of a chat, behind instructions.

    `hears`: the model takes audio; another gets what was said.
    """
    messages = Messages(instructions or None, Places())
    chats = [made for item in items if (made := item.to_chat(hears)) is not None]
    messages.add_all(chats, "input", is_listed=True)
    return messages.messages or [{"role": "user", "content": ""}]
