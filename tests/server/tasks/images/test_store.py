"""Pictures by URL: bounded in number and time."""

from types import SimpleNamespace

import pytest

from omnistage.server.tasks.images import store as store_module
from omnistage.server.tasks.images.store import PATH, ImageStore


def id_of(path: str) -> str:
    return path.removeprefix(f"{PATH}/")


def test_a_file_is_kept_with_its_type() -> None:
    store = ImageStore()
    image = store.get(id_of(store.put(b"abc", "image/png")))
    assert image is not None
    assert (image.data, image.content_type) == (b"abc", "image/png")


def test_ids_are_long_and_never_the_same() -> None:
    store = ImageStore()
    ids = {id_of(store.put(b"abc", "image/png")) for _ in range(100)}
    assert len(ids) == 100
    assert min(map(len, ids)) >= 32


def test_the_oldest_goes_first() -> None:
    store = ImageStore(max_bytes=10)
    paths = [store.put(b"1234", "image/png") for _ in range(3)]
    assert [store.get(id_of(path)) is not None for path in paths] == [False, True, True]
    assert store.num_bytes == 8
    store.put(b"larger than all", "image/png")
    assert store.num_bytes == 0


def test_what_has_expired_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: now))
    store = ImageStore(lifetime_s=10)
    first = store.put(b"1", "image/png")
    now = 105.0
    second = store.put(b"22", "image/png")
    assert store.get(id_of(first)) is not None
    now = 110.0
    assert store.get(id_of(first)) is None
    assert store.get(id_of(second)) is not None
    assert store.num_bytes == 2
