"""Files as parts of a message."""

import base64
from pathlib import Path

import pytest

from omnistage.demo import attachments
from omnistage.demo.attachments import part_of, parts_of
from omnistage.demo.failure import CannotSend


def written(folder: Path, name: str, content: bytes = b"content") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


DATA = base64.b64encode(b"content").decode()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.png", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}),
        ("a.WAV", {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}),
        ("a.mp3", {"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}),
        ("a.mp4", {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{DATA}"}}),
        ("a.txt", {"type": "text", "text": "a.txt:\ncontent"}),
        ("a.unknown", {"type": "text", "text": "a.unknown:\ncontent"}),
    ],
)
def test_a_file_is_the_part_of_its_kind(name: str, part: object, tmp_path: Path) -> None:
    assert part_of(written(tmp_path, name)) == part


def test_another_sound_is_a_url(tmp_path: Path) -> None:
    part = part_of(written(tmp_path, "a.flac"))
    assert part["audio_url"]["url"].startswith("data:audio/")


def test_what_is_neither_a_medium_nor_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CannotSend, match=r"a\.bin is no picture"):
        part_of(written(tmp_path, "a.bin", b"\xff\xfe\x00"))


def test_files_that_no_body_can_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(written(tmp_path, name)) for name in ("a.txt", "b.txt")]
    monkeypatch.setattr(attachments, "MAX_BYTES", 14)
    assert len(parts_of(files)) == 2
    monkeypatch.setattr(attachments, "MAX_BYTES", 13)
    with pytest.raises(CannotSend, match="larger than"):
        parts_of(files)
