"""A request's state: one for each, told by who knows, and what it holds is given back."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from omnistage.server.common.outcome import Outcome
from omnistage.server.http.state import RequestState, WithState, held, state_of

SERVER = Path(__file__).parents[3] / "server"


async def receive() -> Message:
    return {"type": "http.disconnect"}


async def send(_: Message) -> None:
    pass


async def serve(app: WithState) -> None:
    await app({"type": "http"}, receive, send)


async def test_each_request_has_a_state_of_its_own() -> None:
    seen: list[RequestState] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        state_of(scope).key = "mine"
        seen.append(state_of(dict(scope)))  # a copy of the scope has the same

    with_state = WithState(app)
    await serve(with_state)
    await serve(with_state)
    assert [state.key for state in seen] == ["mine", "mine"]
    assert seen[0] is not seen[1]


@pytest.mark.parametrize("failure", [None, ZeroDivisionError])
async def test_what_is_held_is_given_back_in_reverse_however_the_answer_ends(
    failure: type[Exception] | None,
) -> None:
    left: list[str] = []

    @contextmanager
    def place(name: str) -> Iterator[str]:
        try:
            yield name
        finally:
            left.append(name)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        assert [held(http, place("first")), held(http, place("second"))] == ["first", "second"]
        assert left == []
        if failure is not None:
            raise failure

    expected = nullcontext() if failure is None else pytest.raises(failure)
    with expected:
        await serve(WithState(app))
    assert left == ["second", "first"]


def test_without_a_state_nothing_can_be_held() -> None:
    with pytest.raises(KeyError):
        state_of({"type": "http"})


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (RequestState(), Outcome.CANCELLED),
        (RequestState(status=200), Outcome.FINISHED),
        (RequestState(status=404), Outcome.REFUSED),
        (RequestState(status=500), Outcome.FAILED),
        (RequestState(status=200, reported_outcome=Outcome.CANCELLED), Outcome.CANCELLED),
        (RequestState(status=200, reported_outcome=Outcome.FAILED), Outcome.FAILED),
    ],
)
def test_a_request_ended_as_it_was_told_or_as_its_status_says(
    state: RequestState, outcome: Outcome
) -> None:
    assert state.outcome is outcome


def writes_to_a_scope(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    return any(
        isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "scope" for one in stored
    )


def test_nothing_else_is_left_in_a_scope() -> None:
    writing = {path.name for path in SERVER.rglob("*.py") if writes_to_a_scope(path)}
    assert writing == {"state.py"}
    assert not [path for path in SERVER.rglob("*.py") if "scope.setdefault" in path.read_text()]
