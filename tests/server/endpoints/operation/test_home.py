"""GET / in a browser, and what is meant by paths that a wrong base URL makes."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.gateway.serving import IMAGES, OMNI, RunningGateway, running_gateway
from support.waiting import wait_until

from omnistage.server.http.access.keys import Keys
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.models.random_weights import RANDOM_NOTE


def home(url: str, **headers: str) -> str:
    answer = httpx.get(f"{url}/", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def links_of(page: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', page)


def test_it_names_the_model_and_links_lead_somewhere(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        page = home(gateway.url)
        assert "<code>tests/fake-omni</code> makes text, audio." in page
        assert "<p>Ready.</p>" in page
        assert f"omnistage demo --url {gateway.url}" in page
        assert links_of(page) == ["/docs", "/v1/models", "/health", "/metrics"]
        for path in links_of(page):
            assert httpx.get(f"{gateway.url}{path}").status_code == 200
        assert not re.findall(r'(?:src|href)="(?!/)', page)  # nothing from elsewhere


def test_it_says_which_stage_the_server_waits_for(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        talker = gateway.stages.stages["talker"]
        gateway.stages.is_loading = {"talker"}  # when it is started again
        gateway.do(lambda: talker.die("signal SIGKILL"))
        says = "<p>Not ready: talker ("
        wait_until(lambda: says in home(gateway.url))


def test_it_needs_no_key_as_health_needs_none(tmp_path: Path) -> None:
    with running_gateway(tmp_path, IMAGES, keys=Keys(["sk-a"]), admin_keys=Keys(["b"])) as gateway:
        for path in ("/", "/health"):
            assert httpx.get(f"{gateway.url}{path}").status_code == 200
        assert httpx.get(f"{gateway.url}/v1/models").status_code == 401


def test_below_a_proxys_path_its_links_are_below_it_too(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, root_path="/models") as gateway:
        for path in ("/", "/models/"):
            page = httpx.get(f"{gateway.url}{path}").text
            assert links_of(page)[0] == "/models/docs"


def test_names_are_text_and_no_markup(tmp_path: Path) -> None:
    graph = {**OMNI, "served_model_name": "<b>x</b>", "note": "a & b"}
    with running_gateway(tmp_path, graph) as gateway:
        page = home(gateway.url, host='x"><script>')
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "(a &amp; b)" in page
    assert "<script>" not in page


def test_random_weights_are_noted_there_and_at_the_models(tmp_path: Path) -> None:
    graph = StageGraph.model_validate(OMNI).with_engine(load_format="dummy")
    with running_gateway(tmp_path, graph.model_dump(by_alias=True)) as gateway:
        assert f"makes text, audio ({RANDOM_NOTE})." in home(gateway.url)
        (card,) = httpx.get(f"{gateway.url}/v1/models").json()["data"]
        assert card["note"] == RANDOM_NOTE


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("paths"), OMNI) as running:
        yield running


MEANT = [
    ("POST", "/chat/completions", "/v1/chat/completions"),
    ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
    ("POST", "/v1/chat/completions/chat/completions", "/v1/chat/completions"),
    ("POST", "/api/audio/speech", "/v1/audio/speech"),
    ("GET", "/models", "/v1/models"),
    ("GET", "/models/tests/fake-omni", "/v1/models/tests/fake-omni"),
    ("POST", "/images/generations", "/v1/images/generations"),
    ("GET", "/responses/resp_1", "/v1/responses/resp_1"),
]


@pytest.mark.parametrize(("method", "path", "meant"), MEANT, ids=[one[1] for one in MEANT])
def test_a_path_that_a_wrong_base_url_made_is_answered_with_the_right_one(
    method: str, path: str, meant: str, gateway: RunningGateway
) -> None:
    answer = httpx.request(method, f"{gateway.url}{path}", json={} if method == "POST" else None)
    assert answer.status_code == 404
    said = f"Not Found: {method} {path}; did you mean {meant}?"
    assert answer.json()["error"]["message"] == said


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/favicon.ico", "/v1", "/completion"])
def test_other_paths_are_not_guessed_at(path: str, gateway: RunningGateway) -> None:
    answer = httpx.get(f"{gateway.url}{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"Not Found: GET {path}"
