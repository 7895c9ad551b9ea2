"""Sessions that a client secret opens: how they begin, what they may, where they are seen."""

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.realtime.client import PATH, Talk, talking
from support.realtime.client_secrets import BETA, KEY, SECRETS, Json, opened, posted
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from omnistage.server.endpoints.realtime import client_secrets
from omnistage.server.http.access.cors import Cors
from omnistage.server.http.access.keys import Keys
from omnistage.server.options.bounds import SessionBounds


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with keys, of which each may have two sessions."""
    folder = tmp_path_factory.mktemp("guarded")
    keys, bounds = Keys([KEY, "sk-bob"]), SessionBounds(max_of_key=2)
    with running_gateway(folder, OMNI, keys=keys, sessions=bounds) as gateway:
        yield gateway


def secret_of(gateway: RunningGateway, **session: Any) -> str:
    answer = posted(gateway, session={"type": "realtime", **session})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["value"])


def refusal(gateway: RunningGateway, **options: Any) -> tuple[int, Json]:
    with pytest.raises(InvalidStatus) as refused:
        connect(gateway.url.replace("http", "ws", 1) + PATH, **options)
    response = refused.value.response
    return response.status_code, json.loads(response.body or b"")["error"]


def test_a_session_begins_as_its_secret_says_and_may_change(guarded: RunningGateway) -> None:
    tool = {"type": "function", "name": "look", "description": "", "parameters": {}}
    secret = secret_of(guarded, instructions="Be brief.", tools=[tool], output_modalities=["text"])
    for query in ("", f"?model={MODEL}"):
        with opened(guarded, secret, query) as talk:
            told = talk.events[0]["session"]
            assert (told["instructions"], told["tools"]) == ("Be brief.", [tool])
            assert told["output_modalities"] == ["text"]
            thinker = guarded.stages.stages["thinker"].opened
            assert talk.answer(tools=[])["status"] == "completed"
            messages = thinker[-1].message.fields["messages"]
            assert messages[0] == {"role": "system", "content": "Be brief."}
            assert talk.update(instructions="Be long.")["instructions"] == "Be long."


def test_pages_offer_it_as_a_subprotocol(guarded: RunningGateway) -> None:
    url = guarded.url.replace("http", "ws", 1) + PATH
    secret = secret_of(guarded, instructions="Be brief.")
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{secret}")]
    with connect(url, subprotocols=offered) as ws:
        assert ws.subprotocol == "realtime"
        assert Talk(ws).event()["session"]["instructions"] == "Be brief."


def test_it_opens_nothing_else(guarded: RunningGateway) -> None:
    headers = {"Authorization": f"Bearer {secret_of(guarded)}"}
    described = httpx.get(f"{guarded.url}/openapi.json").json()
    paths = [path for path, about in described["paths"].items() if guarded_by_key(about)]
    paths.remove("/v1/realtime/calls")  # a session, too
    assert len(paths) > 20
    assert {SECRETS, *BETA, "/v1/chat/completions", "/v1/audio/speech"} <= {*paths}
    for path in [*paths, "/v1/realtime/", "/v1/unknown"]:
        for method in described["paths"].get(path, {"post": {}, "get": {}}):
            named = path.replace("{", "").replace("}", "").replace(":path", "")
            answer = httpx.request(method, guarded.url + named, headers=headers)
            assert answer.status_code == 401, (method, path, answer.text)
    socket = guarded.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    with pytest.raises(InvalidStatus) as refused:
        connect(socket, additional_headers=headers)
    assert refused.value.response.status_code == 401


def guarded_by_key(about: Json) -> bool:
    """Whether the description says that each method of a path wants a key."""
    return all("security" in one for one in about.values())


def test_without_its_key_none_is_made(guarded: RunningGateway) -> None:
    for path in (SECRETS, *BETA):
        for headers in ({}, {"Authorization": "Bearer sk-eve"}):
            assert httpx.post(guarded.url + path, json={}, headers=headers).status_code == 401


def test_an_expired_one_opens_nothing_and_its_sessions_go_on(
    guarded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_secrets, "BETA_S", 2)
    with contextlib.ExitStack() as stack:
        for _ in range(30):  # on a busy machine some may expire before they are used
            secret = posted(guarded, BETA[0]).json()["client_secret"]
            with contextlib.suppress(InvalidStatus):
                talk = stack.enter_context(opened(guarded, secret["value"]))
                break
        time.sleep(max(0.0, secret["expires_at"] - time.time()))
        headers = {"Authorization": f"Bearer {secret['value']}"}
        status, error = refusal(guarded, additional_headers=headers)
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert talk.answer()["status"] == "completed"


def test_a_server_without_keys_refuses_an_unknown_one(gateway: RunningGateway) -> None:
    headers = {"Authorization": "Bearer ek_unknown"}
    status, error = refusal(gateway, additional_headers=headers)
    assert (status, error["code"]) == (401, "invalid_api_key")
    made = httpx.post(gateway.url + SECRETS, json={"session": {"instructions": "Be brief."}})
    with opened(gateway, made.json()["value"]) as talk:
        assert talk.events[0]["session"]["instructions"] == "Be brief."


def test_sessions_count_as_those_of_the_key_that_made_the_secret(guarded: RunningGateway) -> None:
    secret = secret_of(guarded)
    with contextlib.ExitStack() as until:
        until.enter_context(opened(guarded, KEY))
        until.enter_context(opened(guarded, secret))
        for key in (KEY, secret, secret_of(guarded)):
            status, error = refusal(guarded, additional_headers={"Authorization": f"Bearer {key}"})
            assert (status, error["code"]) == (429, "rate_limit_exceeded")
        with opened(guarded, "sk-bob"):
            pass
    with opened(guarded, secret):
        pass


def test_without_keys_sessions_are_those_of_an_address(tmp_path: Path) -> None:
    bounds = SessionBounds(max_of_key=1)
    with running_gateway(tmp_path, OMNI, sessions=bounds) as gateway, talking(gateway):
        assert refusal(gateway)[0] == 429


@pytest.mark.parametrize(
    ("origin", "is_open"),
    [
        (None, True),
        ("OWN", True),
        ("https://app.example", True),
        ("https://app.example:8443", False),
        ("https://evil.example", False),
        ("https://app.example.evil.example", False),
        ("null", False),
        ("[", False),
    ],
)
def test_a_page_connects_from_its_own_host_or_an_allowed_one(
    tmp_path: Path, origin: str | None, is_open: bool
) -> None:
    cors = Cors(("https://app.example",))
    with running_gateway(tmp_path, OMNI, keys=Keys([KEY]), cors=cors) as gateway:
        headers = {"Authorization": f"Bearer {secret_of(gateway)}"}
        if origin is not None:
            headers["Origin"] = gateway.url if origin == "OWN" else origin
        if is_open:
            with talking(gateway, additional_headers=headers) as talk:
                assert talk.answer()["status"] == "completed"
        else:
            status, error = refusal(gateway, additional_headers=headers)
            assert (status, error["code"]) == (403, "origin_not_allowed")


class Log(logging.Handler):
    """All that a server's process logs, but for what the clients of the test do."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] not in ("httpx", "httpcore", "websockets"):
            self.lines.append(logging.Formatter().format(record))


@pytest.fixture
def log() -> Iterator[Log]:
    root, handler = logging.getLogger(), Log()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def test_no_key_and_nothing_that_was_said_is_logged(tmp_path: Path, log: Log) -> None:
    with running_gateway(tmp_path, OMNI, keys=Keys([KEY])) as gateway:
        secret = secret_of(gateway, instructions="Keep the sesame word.")
        wrong = {"Authorization": "Bearer ek_wrong"}
        assert refusal(gateway, additional_headers=wrong)[0] == 401
        url = gateway.url.replace("http", "ws", 1) + PATH
        offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{secret}")]
        with connect(url, subprotocols=offered) as ws:
            talk = Talk(ws)
            talk.write("Open sesame.")
            words = talk.answer()["output"][0]["content"][0]["transcript"]
            talk.write("refuse")
            assert talk.answer(instructions="sesame")["status"] == "failed"
            talk.say("sesame")
            talk.until("error")
    assert any("/v1/realtime" in line for line in log.lines)
    for hidden in (secret, "ek_wrong", KEY, "sesame", words):
        assert not [line for line in log.lines if hidden in line]
