"""Images that clients fetch by URL: in memory, for a while, no more than fit."""

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

LIFETIME_S = 3600
MAX_BYTES = 512 << 20
ID_BYTES = 24
PATH = "/v1/images/files"


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A file, and until when it is kept (by the monotonic clock)."""

    data: bytes
    content_type: str
    expires_at: float


class ImageStore:
    """Files by an id that nobody can guess; the oldest go first."""

    def __init__(self, max_bytes: int = MAX_BYTES, lifetime_s: float = LIFETIME_S) -> None:
        self._max_bytes = max_bytes
        self._lifetime_s = lifetime_s
        self._images: OrderedDict[str, StoredImage] = OrderedDict()
        self.num_bytes = 0

    def put(self, data: bytes, content_type: str) -> str:
        """Keep a file; its path."""
        image_id = secrets.token_urlsafe(ID_BYTES)
        expires_at = time.monotonic() + self._lifetime_s
        self._images[image_id] = StoredImage(data, content_type, expires_at)
        self.num_bytes += len(data)
        while self.num_bytes > self._max_bytes:
            self._forget_oldest()
        return f"{PATH}/{image_id}"

    def get(self, image_id: str) -> StoredImage | None:
        """The file, unless it has expired or had to go."""
        self._forget_expired()
        return self._images.get(image_id)

    def _forget_expired(self) -> None:
        now = time.monotonic()
        while self._images and next(iter(self._images.values())).expires_at <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, image = self._images.popitem(last=False)
        self.num_bytes -= len(image.data)
