"""File URLs: what lies below the folder is read, and nothing else."""

import os
from pathlib import Path

import pytest

from omnistage.server.media.fetch import MediaRefused
from omnistage.server.media.files import MediaFolder

ENOUGH = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "media"
    (root / "in").mkdir(parents=True)
    (root / "a b.png").write_bytes(b"picture")
    (root / "in" / "x").write_bytes(b"x")
    (root / "link").symlink_to(root / "in" / "x")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-2").mkdir()
    (tmp_path / "media-2" / "x").write_bytes(b"secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    return root


def read(root: Path, url: str, max_bytes: int = ENOUGH) -> bytes:
    folder = MediaFolder(root)
    return folder.read(folder.check(url.replace("ROOT", str(root))), max_bytes)


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("file://ROOT/a%20b.png", b"picture"),
        ("file://localhostROOT/in/x", b"x"),
        ("FILE://ROOT/link", b"x"),
        ("file:ROOT/in/../in/x", b"x"),
        ("file://ROOT/%69n/%78", b"x"),
        ("file://ROOT/up/media/in/x", b"x"),
    ],
)
def test_what_lies_below_is_read(url: str, data: bytes, root: Path) -> None:
    assert read(root, url) == data


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "file://ROOT/../secret", "file://ROOT/%2e%2e/secret"),
        *("file://ROOT/in/..%2f..%2fsecret", "file://ROOT/out", "file://ROOT/up/secret"),
        *("file://ROOT-2/x", "file://ROOT/up/media-2/x", "file:///proc/self/environ"),
        *("file:///proc/self/root/etc/passwd", "file:///dev/zero", "file://ROOT/pipe"),
        *("file://ROOT", "file://ROOT/in", "file://ROOT/none", "file://ROOT/loop"),
        *("file://ROOT/in/x%00.png", "file:in/x", "file://in/x", "file:", "file:///"),
        *("file://evil.testROOT/in/x", "file://127.0.0.1ROOT/in/x", "file://[::1ROOT/in/x"),
        *("file://ROOT/in/x?a", "file://ROOT/in/x#a", "file://ROOT/%252e%252e/secret"),
        *("file://ROOT/" + "a" * 300, "file://ROOT/" + "a/" * 5000),
    ],
)
def test_what_does_not_is_not(url: str, root: Path) -> None:
    with pytest.raises(MediaRefused) as caught:
        read(root, url)
    assert str(root) not in str(caught.value)


def test_a_path_that_leads_elsewhere_once_it_is_open_is_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = root / "in" / "x"

    def swap_then_open(path: Path, flags: int) -> int:
        target.unlink()
        target.symlink_to(root.parent / "secret")
        return opened(path, flags)

    opened = os.open
    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(MediaRefused):
        read(root, "file://ROOT/in/x")


def test_a_file_that_is_too_large_is_not_read(root: Path) -> None:
    assert read(root, "file://ROOT/a%20b.png", 7) == b"picture"
    with pytest.raises(MediaRefused, match="too large"):
        read(root, "file://ROOT/a%20b.png", 6)


def test_without_a_folder_no_file_is_read() -> None:
    with pytest.raises(
        MediaRefused, match="does not read: start it with --allowed-media-path, or send a data: URL"
    ):
        MediaFolder(None).check("file:///etc/passwd")


def test_the_folder_itself_may_be_a_link(root: Path) -> None:
    link = root.parent / "linked"
    link.symlink_to(root)
    folder = MediaFolder(link)
    assert folder.read(folder.check(f"file://{link}/in/x"), ENOUGH) == b"x"
