"""A medium of a request: the part that has it, and its place."""

import base64
from dataclasses import dataclass
from typing import Any

from omnistage.server.media.sound import RawAudio
from omnistage.server.media.video.watching import AS_IT_IS, Watching


@dataclass(frozen=True, slots=True)
class Medium:
    """One medium of a request: its checked part, and the part's place.

    `data`: the file itself, or audio that is in none, where the part has no file.
    """

    place: str
    part: dict[str, Any]
    watching: Watching = AS_IT_IS
    data: bytes | RawAudio | None = None

    @classmethod
    def of_part(cls, part: dict[str, object], path: str, watching: Watching = AS_IT_IS) -> "Medium":
        """Return the medium of a checked part that is no text."""
        given = part[str(part["type"])]
        data = given if isinstance(given, RawAudio) else None
        return cls(f"{path}.{part['type']}", part, watching, data)

    @property
    def kind(self) -> str:
        """The part's type: image_url, audio_url, input_audio or video_url."""
        kind: str = self.part["type"]
        return kind

    @property
    def is_image(self) -> bool:
        """Returns whether a stage gets it as a file."""
        return self.kind == "image_url"

    @property
    def url(self) -> str:
        """Where it is, if it is not here."""
        if self.data is not None:
            return ""
        url: str = self._source.get("url", "")
        return "" if url.startswith("data:") else url

    @property
    def encoded(self) -> str:
        """Returns its base64."""
        data: str = self._source.get("data") or self._source["url"].partition(",")[2]
        return data

    @property
    def _source(self) -> dict[str, Any]:
        source: dict[str, Any] = self.part[self.kind]
        return source

    def put(self, data: bytes) -> None:
        """Have it here, as a data URL."""
        encoded = base64.b64encode(data).decode("ascii")
        self._source["url"] = f"data:application/octet-stream;base64,{encoded}"

    def refer_to(self, url: str) -> None:
        """Name in its place what the stage gets beside the request."""
        kind = "video_url" if self.kind == "video_url" else "audio_url"
        self.part.clear()
        self.part.update({"type": kind, kind: {"url": url}})
