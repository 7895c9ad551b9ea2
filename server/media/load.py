"""Gets the media of a request from where they are.

Images are looked at, and stay in the request; what is heard or seen in time is read later, while it
is sent to a stage (incoming.py).
"""

import asyncio
import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar
from uuid import uuid4

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.common.memory import GivingBack
from omnistage.server.media.decode_room import NUM_BYTES, DecodeRoom
from omnistage.server.media.fetch import Budget, MediaError, MediaFetcher
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.images import File, as_plain_png, check_whole, look_at
from omnistage.server.media.incoming import BASE_BYTES, Incoming, MediaFile
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import decoded

MAX_MEDIA = 512
MAX_FETCHED = 64
SCHEME = "omnistage:"  # of what a stage gets beside a request; no client may name it
MAX_FETCHED_BYTES = 24 << 20  # as base64 they are as much as a body may have


T = TypeVar("T")


class MediaLoader:
    """Fetches and reads concurrently; looks at media in threads, as far as there is room."""

    def __init__(
        self, fetcher: MediaFetcher, folder: MediaFolder, room: DecodeRoom | None = None
    ) -> None:
        self._fetcher = fetcher
        self._folder = folder
        self.room = room or DecodeRoom(NUM_BYTES, GivingBack())

    async def load_all(self, media: Sequence[Medium]) -> Incoming | None:
        """Put images into the request; what else there is comes back, and has a name in it.

        Raises ApiError. The deadline is the caller's.
        """
        if len(media) > MAX_MEDIA:
            raise invalid("messages", f"have {len(media)} media; at most {MAX_MEDIA}")
        if sum(1 for medium in media if medium.url) > MAX_FETCHED:
            raise invalid("messages", f"have more than {MAX_FETCHED} URLs to fetch or read")
        fetched, rewritten = Budget(MAX_FETCHED_BYTES), Budget(MAX_FETCHED_BYTES)
        try:
            async with asyncio.TaskGroup() as group:
                loads = (self._load(medium, fetched, rewritten) for medium in media)
                tasks = [group.create_task(load) for load in loads]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        files = [file for file in (task.result() for task in tasks) if file is not None]
        for file in files:
            file.medium.refer_to(file.name)
        return Incoming(files, self.room) if files else None

    async def files_of(self, media: Sequence[Medium]) -> list[File]:
        """Return media as files, as they are; raises ApiError. The deadline is the caller's."""
        budget = Budget(MAX_FETCHED_BYTES)
        files = []
        for medium in media:
            if medium.url:
                data = await self._fetched(medium, budget)
            else:
                get = partial(base64.b64decode, medium.encoded)
                data = await self.room.run(len(medium.encoded), get)
            files.append(File(medium.place, data))
        return files

    async def read_one(self, medium: Medium, read: Callable[[bytes], T]) -> T:
        """Returns what is read of one sound, which may be elsewhere; no deadline but the
        caller's.
        """
        if not medium.url:
            encoded, place = medium.encoded, medium.place
            return await self.read(len(encoded), lambda: read(decoded(encoded, place)))
        data = await self._fetched(medium, Budget(MAX_FETCHED_BYTES))
        return await self.read(len(data), lambda: read(data))

    async def read(self, num_bytes: int, read: Callable[[], T]) -> T:
        """Returns what is read of a sound of so many bytes, in a thread."""
        return await self.room.run(BASE_BYTES + num_bytes, read)

    async def keep(self, num_bytes: int, until: ExitStack) -> None:
        """Count what was read of a medium among what may be taken, until the stack ends."""
        await self.room.run(num_bytes, lambda: None, until, lambda _: num_bytes)

    async def _load(self, medium: Medium, fetched: Budget, rewritten: Budget) -> MediaFile | None:
        """Fetch it if it is elsewhere; put an image in its place, as stages read it."""
        if medium.data is not None:
            return MediaFile(medium, medium.data, f"{SCHEME}{uuid4().hex}")
        new: bytes | None = None
        if medium.url:
            new = await self._fetched(medium, fetched)
            get, size = partial(bytes, new), len(new)
        else:
            get, size = partial(base64.b64decode, medium.encoded), len(medium.encoded)
        if not medium.is_image:
            data = new if new is not None else await self.room.run(size, get)
            return MediaFile(medium, data, f"{SCHEME}{uuid4().hex}")

        def file() -> File:
            return File(medium.place, get())

        is_plain, needed = await self.read(size, lambda: look_at(file()))
        if is_plain:  # stages find nothing in it that is broken
            await self.read(size + needed, lambda: check_whole(file()))
        else:
            new = await self._rewritten(medium, file, size + needed, rewritten)
        if new is not None:
            await self.room.run(2 * len(new), partial(medium.put, new))
        return None

    async def _rewritten(
        self, medium: Medium, get: Callable[[], File], num_bytes: int, budget: Budget
    ) -> bytes:
        """Return an image in whose file stages would see other colours as a PNG of the same."""
        data = await self.read(num_bytes, lambda: as_plain_png(get()))
        with _refusing(medium):
            budget.spend(len(data))
        return data

    async def _fetched(self, medium: Medium, budget: Budget) -> bytes:
        with _refusing(medium):
            return await self._get(medium.url, budget)

    async def _get(self, url: str, budget: Budget) -> bytes:
        if url[:5].lower() != "file:":
            return await self._fetcher.fetch(url, budget)
        path = self._folder.check(url)
        most = budget.num_bytes
        data = await self.room.run(most, lambda: self._folder.read(path, most))
        budget.spend(len(data))
        return data


@contextmanager
def _refusing(medium: Medium) -> Iterator[None]:
    """Turn what a medium is refused for into an ApiError that names its place."""
    try:
        yield
    except MediaError as error:
        message = f"{medium.place} {error}."
        raise ApiError(400, message, param=medium.place, code=error.code) from error
