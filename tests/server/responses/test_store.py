"""Responses that are kept: for a time, in bounded memory, each for its owner."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.responses import store
from omnistage.server.responses.store import LIFETIME_S, ResponseStore, StoredResponse


def stored(text: str = "x", owner: str | None = None) -> StoredResponse:
    response = {"id": "r", "output": [{"type": "message", "text": text}]}
    return StoredResponse.of(owner, response, [{"type": "message", "id": "a"}])


def has(kept: ResponseStore, response_id: str, owner: str | None = None) -> bool:
    try:
        kept.get(response_id, owner)
    except ApiError:
        return False
    return True


def test_a_conversation_is_what_was_read_and_what_was_answered() -> None:
    items: list[Any] = [{"type": "message", "id": "a"}]
    kept = StoredResponse.of(None, {"output": [{"id": "b"}]}, items)
    items.append({"id": "later"})
    assert kept.conversation == [{"type": "message", "id": "a"}, {"id": "b"}]


def test_the_oldest_go_when_there_are_too_many_bytes() -> None:
    kept = ResponseStore(max_bytes=3 * stored().num_bytes)
    for name in "abcd":
        kept.put(name, stored())
    assert [has(kept, name) for name in "abcd"] == [False, True, True, True]


def test_one_that_is_larger_than_all_may_be_is_not_kept_and_pushes_no_other_out() -> None:
    kept = ResponseStore(max_bytes=3 * stored().num_bytes)
    kept.put("small", stored())
    kept.put("large", stored("x" * 4 * stored().num_bytes))
    assert (has(kept, "small"), has(kept, "large")) == (True, False)
    kept.put("e", stored())
    assert has(kept, "e")


def test_what_was_deleted_takes_no_room() -> None:
    kept = ResponseStore(max_bytes=2 * stored().num_bytes)
    kept.put("a", stored())
    kept.put("b", stored())
    kept.delete("b", None)
    kept.put("c", stored())
    assert [has(kept, name) for name in "abc"] == [True, False, True]


def test_a_response_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ResponseStore()
    kept.put("a", stored())
    assert has(kept, "a")
    later = time.time() + LIFETIME_S + 1
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: later))
    assert not has(kept, "a")


def test_only_its_owner_sees_a_response() -> None:
    kept = ResponseStore()
    kept.put("a", stored(owner="ann"))
    assert has(kept, "a", "ann")
    assert not has(kept, "a")
    for ask in (kept.get, kept.delete):
        with pytest.raises(ApiError) as missing:
            ask("a", "bob")
        assert (missing.value.status, missing.value.code) == (404, "response_not_found")
    assert has(kept, "a", "ann")
