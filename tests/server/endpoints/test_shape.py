"""Every endpoint has one shape: a file whose `routes(gateway)` comes first."""

import ast
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.serving import MODEL, OMNI, running_gateway

from omnistage.server import app
from omnistage.server.http.access.keys import Keys, is_guarded

FOLDER = Path(__file__).parents[3] / "server" / "endpoints"
FILES = {path.stem: path for path in FOLDER.rglob("*.py")}
# What endpoints need; everything else in the rooms is one.
NOT_ENDPOINTS = {
    "__init__",
    "answers",
    "chat_chunks",
    "client_secret_fields",
    "counters",
    "image_form",
    "examples",
    "gateway",
    "image_answers",
    "image_chat",
    "kept_responses",
    "media_form",
    "present",
    "socket_answers",
    "speech_stream_answers",
    "speech_stream_events",
    "speech_stream_fields",
    "state_answers",
    "video_answers",
    "video_form",
}
ENDPOINTS = sorted(FILES.keys() - NOT_ENDPOINTS)
IDS = ("call_id", "image_id", "response_id", "video_id", "voice_id")
Json = dict[str, Any]


def definitions(name: str) -> list[ast.stmt]:
    tree = ast.parse(FILES[name].read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, kinds)]


@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_endpoint_begins_with_its_routes(name: str) -> None:
    first = definitions(name)[0]
    assert isinstance(first, ast.FunctionDef)
    assert first.name == "routes"
    assert ast.unparse(first.args) == "gateway: Gateway"
    assert first.returns is not None
    assert ast.unparse(first.returns) == "APIRouter"


@pytest.mark.parametrize("name", sorted(NOT_ENDPOINTS))
def test_what_is_no_endpoint_has_no_routes(name: str) -> None:
    assert "APIRouter" not in FILES[name].read_text()


def test_the_app_has_every_endpoint_once() -> None:
    included = [*app.BESIDE_THE_API, *app.WITHOUT_KEY, *app.GUARDED, *app.SOCKETS]
    names = sorted(routes.__module__.rpartition(".")[2] for routes in included)
    assert names == ENDPOINTS


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The description of a server that wants a key."""
    folder = tmp_path_factory.mktemp("guarded")
    with (
        running_gateway(folder, OMNI, keys=Keys(["sk-ann"])) as gateway,
        httpx.Client(base_url=gateway.url) as stranger,
    ):
        described: Json = stranger.get("/openapi.json").json()
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                concrete = path.format(name=MODEL, **dict.fromkeys(IDS, "x"))
                is_refused = stranger.request(method, concrete, json={}).status_code == 401
                assert is_refused == ("security" in operation), path
    return described


def test_the_key_is_wanted_where_the_description_says_so(guarded: Json) -> None:
    """The fixture has asked everywhere without one."""
    found = {
        (path, method): operation.get("security") == [{"key": []}]
        for path, operations in guarded["paths"].items()
        for method, operation in operations.items()
    }
    for (path, method), is_wanted in found.items():
        assert is_wanted == is_guarded(path, method=method.upper()), (method, path)
    said = {path for (path, _), is_wanted in found.items() if is_wanted}
    assert {"/v1/chat/completions", "/v1/models/{name}", "/v1/audio/models"} <= said
    assert found["/v1/audio/voices", "post"]
    assert not found["/v1/audio/voices", "get"]
    assert guarded["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_every_schema_that_is_referred_to_is_there(guarded: Json) -> None:
    found = references(guarded)
    schemas = {f"#/components/schemas/{name}" for name in guarded["components"]["schemas"]}
    assert "#/components/schemas/LoraChoice" in found
    assert found <= schemas
    assert schemas - found == set()  # and none that nobody needs
