"""Files that a reader attaches, as parts of a message."""

import base64
import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omnistage.demo.failure import CannotSend

MAX_BYTES = 22 << 20  # in base64 a little less than the 32 MiB that a body may have
INPUT_AUDIO = {".wav": "wav", ".mp3": "mp3"}
URL_PARTS = {"image": "image_url", "video": "video_url", "audio": "audio_url"}

Part = dict[str, Any]


def parts_of(files: Iterable[str]) -> list[Part]:
    """One part a file."""
    paths = [Path(file) for file in files]
    if sum(path.stat().st_size for path in paths) > MAX_BYTES:
        raise CannotSend(f"The files are larger than {MAX_BYTES >> 20} MiB together.")
    return [part_of(path) for path in paths]


def part_of(path: Path) -> Part:
    """A picture, a sound, a video, or the text that is in the file."""
    media_type = mimetypes.guess_type(path.name)[0] or ""
    kind = media_type.partition("/")[0]
    content = path.read_bytes()
    data = base64.b64encode(content).decode()
    if path.suffix.lower() in INPUT_AUDIO:
        sound = {"data": data, "format": INPUT_AUDIO[path.suffix.lower()]}
        return {"type": "input_audio", "input_audio": sound}
    if kind in URL_PARTS:
        name = URL_PARTS[kind]
        return {"type": name, name: {"url": f"data:{media_type};base64,{data}"}}
    return {"type": "text", "text": f"{path.name}:\n{text_in(path.name, content)}"}


def text_in(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CannotSend(f"{name} is no picture, sound, video or text.") from None
