"""Keys that the server makes: each opens until its second, and there is a bound."""

import pytest
from starlette.datastructures import Headers

from omnistage.server.common.errors import ApiError
from omnistage.server.http.access import temporary_keys
from omnistage.server.http.access.temporary_keys import TemporaryKeys


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_key(value: str) -> Headers:
    return Headers({"authorization": f"Bearer {value}"})


def test_a_key_holds_what_it_is_for_until_it_expires() -> None:
    clock = Clock()
    keys = TemporaryKeys[str](clock)
    value, expires_at = keys.make("ann", "settings", 8, seconds=10)
    assert expires_at == 1010
    for at in (1000.0, 1009.9):
        clock.now = at
        found = keys.find(with_key(value))
        assert found is not None
        assert (found.owner, found.holds) == ("ann", "settings")
    clock.now = 1010.0
    with pytest.raises(ApiError, match="expired") as refused:
        keys.find(with_key(value))
    assert refused.value.status == 401


def test_every_key_is_another_and_none_is_kept_as_it_is() -> None:
    keys = TemporaryKeys[str]()
    values = {keys.make(None, "", 0, 60)[0] for _ in range(100)}
    assert len(values) == 100
    assert all(value.startswith("ek_") and len(value) == 3 + 64 for value in values)
    assert not any(value in repr(vars(keys)) for value in values)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-ann"}])
def test_other_keys_are_none_of_them(headers: dict[str, str]) -> None:
    assert TemporaryKeys[str]().find(Headers(headers)) is None


@pytest.mark.parametrize("value", ["ek_", "ek_" + "0" * 64])
def test_an_unknown_one_is_refused(value: str) -> None:
    with pytest.raises(ApiError) as refused:
        TemporaryKeys[str]().find(with_key(value))
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(("num_keys", "num_bytes"), [(3, 1), (100, 30)])
def test_their_number_and_their_bytes_are_bounded_until_some_expire(
    monkeypatch: pytest.MonkeyPatch, num_keys: int, num_bytes: int
) -> None:
    monkeypatch.setattr(temporary_keys, "MAX_KEYS", num_keys)
    monkeypatch.setattr(temporary_keys, "MAX_BYTES", 100)
    clock = Clock()
    keys = TemporaryKeys[str](clock)
    for _ in range(3):
        keys.make(None, "", num_bytes, 10)
    with pytest.raises(ApiError) as refused:
        keys.make(None, "", num_bytes, 10)
    assert (refused.value.status, refused.value.code) == (429, "too_many_client_secrets")
    clock.now += 10
    keys.make(None, "", num_bytes, 10)
