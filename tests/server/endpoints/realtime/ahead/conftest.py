"""Fixtures of the tests of answers ahead."""

import pytest

from omnistage.server.realtime.ahead import answer_ahead


@pytest.fixture(autouse=True)
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer waits for the end of its turn however long this machine stands still."""
    monkeypatch.setattr(answer_ahead, "MAX_WAIT_S", 600.0)
