"""The API's description: complete, true, and with examples that run."""

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import APIRouter
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.gateway.serving import OMNI, SYNTH, RunningGateway, making_videos, running_gateway
from support.hostile.fuzz import num_cases
from support.waiting import wait_until

from omnistage.server.http.access.keys import Keys
from omnistage.server.http.openapi import (
    EVENTS,
    OF_THE_API,
    WITH_KEY,
    DescribedApp,
    described,
    errors,
)
from omnistage.server.options.bounds import VideoBounds

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
COUNT = num_cases(600, 2000)  # at least
COUNT_EACH = num_cases(20, 70)  # of each route, however many there are: the same cases each time
COUNT_CHAT = num_cases(80, 400)  # its bodies take long to draw, and test_fuzz.py sends others
COUNT_IMAGES = num_cases(60, 200)  # of each route of a model that makes pictures

SUCCESS = {"200", "201"}
schemathesis.serializer.alias("application/sdp", "text/plain")

Json = dict[str, Any]


@pytest.fixture(scope="module")
def spec(client: httpx.Client) -> Json:
    described: Json = client.get("/openapi.json").json()
    return described


def operations(spec: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_operation_says_what_it_does_and_how_it_fails(spec: Json) -> None:
    for path, _, operation in operations(spec):
        assert operation["summary"]
        statuses = set(operation["responses"])
        assert {"400", "500"} <= statuses
        assert len(statuses & SUCCESS) == 1
        assert "422" not in statuses
        assert not path.startswith("/v1") or {"401", "404"} <= statuses
        assert (
            "requestBody" not in operation or {"413", "415", "429", "503", "504", "507"} <= statuses
        )
        for status in statuses - SUCCESS:
            (content,) = operation["responses"][status]["content"].values()
            is_health = (path, status) == ("/health", "503")  # a bad state is an answer, no error
            name = "Health" if is_health else "ErrorResponse"
            assert content["schema"] == {"$ref": f"#/components/schemas/{name}"}


def test_its_version_is_the_package_s(spec: Json) -> None:
    assert spec["info"]["version"] == importlib.metadata.version("omnistage")


def test_every_operation_is_under_one_heading(spec: Json) -> None:
    tags = {path: operation["tags"] for path, _, operation in operations(spec)}
    assert all(len(names) == 1 for names in tags.values())
    assert tags["/v1/chat/completions"] == ["Chat"]
    assert tags["/v1/audio/voices"] == tags["/v1/audio/speech"] == ["Audio"]
    assert tags["/health"] == ["Server"]


def test_the_page_loads_nothing_from_other_hosts(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(linked) == 3
    for address in linked:
        assert address.startswith("/docs/files/")
        assert client.get(address).status_code == 200
    assert "://" not in page.text.replace("http://www.w3.org", "")


def test_every_route_is_in_it(spec: Json) -> None:
    assert {"/v1/chat/completions", "/v1/images/generations", "/v1/models"} <= set(spec["paths"])
    assert {"/v1/models/{name}", "/health", "/ready"} <= set(spec["paths"])
    edit = spec["paths"]["/v1/images/edits"]["post"]
    assert set(edit["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert EVENTS in edit["responses"]["200"]["content"]
    file = spec["paths"]["/v1/images/files/{image_id}"]["get"]["responses"]["200"]["content"]
    assert set(file) == {"image/png", "image/jpeg", "image/webp"}


def test_the_examples_run(client: httpx.Client, images_client: httpx.Client) -> None:
    assert {"text", "streamed", "speech", "a picture"} <= set(run_examples(client))
    assert {"a drawing", "a picture", "a colour"} == set(run_examples(images_client))


def run_examples(client: httpx.Client) -> list[str]:
    """Send those that a server's description has; their names."""
    ran = []
    for path, method, operation in operations(client.get("/openapi.json").json()):
        content = operation.get("requestBody", {}).get("content", {})
        for name, example in content.get("application/json", {}).get("examples", {}).items():
            response = client.request(method, path, json=example["value"])
            assert response.status_code == 200, (name, response.text)
            assert "x-omnistage-warning" not in response.headers
            media_type = response.headers["content-type"].partition(";")[0]
            assert media_type in operation["responses"]["200"]["content"]
            ran.append(name)
    return ran


def test_the_pages_are_open_and_say_that_a_key_is_wanted(
    tmp_path_factory: pytest.TempPathFactory, spec: Json
) -> None:
    folder = tmp_path_factory.mktemp("guarded")
    with (
        running_gateway(folder, OMNI, keys=Keys(["sk-ann"])) as guarded,
        httpx.Client(base_url=guarded.url) as stranger,
    ):
        assert "text/html" in stranger.get("/docs").headers["content-type"]
        guarded_spec = stranger.get("/openapi.json").json()
    chat = guarded_spec["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"key": []}]
    for path in ("/health", "/v1/audio/voices", "/v1/images/files/{image_id}"):
        assert "security" not in guarded_spec["paths"][path]["get"]
    assert "security" not in spec["paths"]["/v1/chat/completions"]["post"]


def test_a_route_that_says_nothing_has_the_errors_too() -> None:
    app = DescribedApp(title="test")
    router = APIRouter()
    router.get("/v1/plain")(lambda number: {})
    router.get("/v1/sound", **described("Speak", also=("audio/wav",)))(lambda: {})
    app.include_router(router, responses=errors(*OF_THE_API), dependencies=[WITH_KEY])
    app.get("/alone")(lambda: {})
    paths = app.openapi()["paths"]
    assert set(paths["/v1/plain"]["get"]["responses"]) == {"200", "400", "401", "404", "500"}
    assert paths["/v1/plain"]["get"]["security"] == [{"key": []}]
    assert set(paths["/alone"]["get"]["responses"]) == {"200", "400", "500"}
    assert "security" not in paths["/alone"]["get"]
    content = paths["/v1/sound"]["get"]["responses"]["200"]["content"]
    assert content == {"audio/wav": {"schema": {"type": "string", "format": "binary"}}}


def send_cases(operation: Any, mode: GenerationMode, url: str, count: int) -> int:
    """Draw and send the same `count` cases of an operation each time; how many there were."""
    num_sent = 0

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case[Any]) -> None:
        nonlocal num_sent
        for header in [name for name in case.headers if name.lower() == "x-request-timeout"]:
            del case.headers[header]  # it would be kept
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=600)
        num_sent += 1

    send()
    return num_sent


@pytest.mark.slow
def test_nothing_that_is_not_described_is_answered(gateway: RunningGateway) -> None:
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    results = list(schema.get_all_operations())
    found = [result.ok() for result in results if isinstance(result, Ok)]
    assert len(found) == len(results)
    num_sent = 0
    for operation in found:
        count = COUNT_CHAT if operation.path == "/v1/chat/completions" else COUNT_EACH
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            num_sent += send_cases(operation, mode, gateway.url, count // 2)
    assert num_sent >= COUNT


@pytest.mark.slow
def test_nothing_that_is_not_described_is_answered_by_pictures(images: RunningGateway) -> None:
    schema = schemathesis.openapi.from_url(f"{images.url}/openapi.json")
    found = schema.include(path_regex="^/v1/images/").get_all_operations()
    sent = {
        result.ok().path: sum(
            send_cases(result.ok(), mode, images.url, COUNT_IMAGES // 2)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        )
        for result in found
        if isinstance(result, Ok)
    }
    assert len(sent) == 3
    assert min(sent.values()) > 0


@pytest.mark.slow
def test_nothing_that_is_not_described_is_answered_by_audio(tmp_path: Path) -> None:
    with running_gateway(tmp_path, SYNTH, arena_mb=16) as synth:
        schema = schemathesis.openapi.from_url(f"{synth.url}/openapi.json")
        (found,) = schema.include(path_regex="^/v1/audio/generate$").get_all_operations()
        assert isinstance(found, Ok)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            assert send_cases(found.ok(), mode, synth.url, COUNT_IMAGES) > 0
        assert httpx.get(f"{synth.url}/ready").status_code == 200


@pytest.mark.slow
def test_nothing_that_is_not_described_is_answered_by_videos(
    tmp_path: Path,
) -> None:
    bounds = VideoBounds(max_queue=5)  # a full queue is described, too
    with running_gateway(tmp_path, making_videos("restyler"), arena_mb=16, videos=bounds) as videos:
        schema = schemathesis.openapi.from_url(f"{videos.url}/openapi.json")
        found = schema.include(path_regex="^/v1/videos").get_all_operations()
        sent = {
            (result.ok().method, result.ok().path): sum(
                send_cases(result.ok(), mode, videos.url, COUNT_IMAGES // 2)
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
            )
            for result in found
            if isinstance(result, Ok)
        }
        assert len(sent) == 9
        assert min(sent.values()) > 0
        answer = httpx.get(f"{videos.url}/v1/videos", params={"limit": 100}).json()
        statuses = {job["status"] for job in answer["data"]}
        assert statuses <= {"queued", "in_progress", "completed", "failed"}
        assert httpx.get(f"{videos.url}/ready").status_code == 200


def test_the_examples_of_videos_run(tmp_path: Path) -> None:
    graph = making_videos("restyler") | {"outputs": {"video": "restyler"}}
    with (
        running_gateway(tmp_path, graph, arena_mb=16) as videos,
        httpx.Client(base_url=videos.url, timeout=600) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert {"a video", "a video job"} <= set(run_examples(client))
