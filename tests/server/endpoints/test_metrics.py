"""GET /metrics as Prometheus reads it."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.gateway import MODEL, OMNI, RunningGateway, running_gateway

from omnistage.server.http.keys import Keys
from omnistage.server.outcome import Outcome, of_status

CHAT, SPEECH, PICTURES = "/v1/chat/completions", "/v1/audio/speech", "/v1/images/generations"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "wav"}}
DOCS = Path(__file__).parents[3] / "docs" / "api.md"

Change = tuple[float, str, dict[str, str]]


def change(by: float, name: str, **labels: str) -> Change:
    return by, f"omnistage_{name}", labels


class Server:
    """A gateway whose counts nobody else moves."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway

    def families(self) -> list[Metric]:
        response = httpx.get(f"{self.gateway.url}/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return list(text_string_to_metric_families(response.text))

    def values(self, changes: tuple[Change, ...]) -> list[float]:
        """Of the samples that are meant, 0 of those that are not there."""
        samples = [one for family in self.families() for one in family.samples]
        found = {(one.name, *sorted(one.labels.items())): one.value for one in samples}
        return [found.get((name, *sorted(labels.items())), 0.0) for _, name, labels in changes]

    @contextmanager
    def moves(self, *changes: Change) -> Iterator[None]:
        """What is done inside has these effects, soon after the client has its answer."""
        before = self.values(changes)
        wanted = [value + by for value, (by, *_) in zip(before, changes, strict=True)]
        yield
        deadline = time.monotonic() + 5
        while (values := self.values(changes)) != pytest.approx(wanted):
            assert time.monotonic() < deadline, (changes, values, wanted)

    def post(self, url: str, **body: Any) -> int:
        body["model"] = MODEL
        return httpx.post(self.gateway.url + url, json=body, timeout=10).status_code

    def chat(self, words: str, **more: Any) -> int:
        return self.post(CHAT, **chat_body(words), **more)


def chat_body(words: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_gateway(tmp_path_factory.mktemp("metrics"), OMNI) as running:
        yield Server(running)


@pytest.fixture(scope="module")
def images_server(images: RunningGateway) -> Server:
    return Server(images)


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_text_is_counted_and_timed(stream: bool, server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="finished", status="200"),
        change(1, "e2e_request_latency_seconds_count", endpoint=CHAT),
        change(1, "answers_total", modality="text", outcome="finished"),
        change(1, "time_to_first_token_seconds_count", modality="text"),
        change(5, "prompt_tokens_total", modality="text"),
        change(3, "generation_tokens_total", modality="text"),
        change(0, "time_to_first_audio_seconds_count", modality="text"),
    ):
        assert server.chat("words", stream=stream) == 200


@pytest.mark.parametrize(("words", "num_frames"), [("words", 5), ("short", 1), ("silent", 0)])
def test_sound_is_counted_in_seconds(words: str, num_frames: int, server: Server) -> None:
    has_sound = num_frames > 0
    with server.moves(
        change(num_frames * 480 / 24_000, "audio_seconds_total", modality="text+audio"),
        change(has_sound, "time_to_first_audio_seconds_count", modality="text+audio"),
        change(1, "time_to_first_token_seconds_count", modality="text+audio"),
    ):
        assert server.chat(words, **SPOKEN) == 200


def test_a_text_that_is_given_has_no_first_token(server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=SPEECH, outcome="finished", status="200"),
        change(1, "time_to_first_audio_seconds_count", modality="text+audio"),
        change(0, "time_to_first_token_seconds_count", modality="text+audio"),
    ):
        assert server.post(SPEECH, input="words") == 200


def test_what_is_refused_before_the_stages_is_no_answer(server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="refused", status="400"),
        change(0, "answers_total", modality="text", outcome="refused"),
        change(0, "e2e_request_latency_seconds_count", endpoint=CHAT),
    ):
        assert server.chat("words", temperature=9) == 400


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_stage_refuses_is_refused(stream: bool, server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="refused", status="400"),
        change(1, "answers_total", modality="text", outcome="refused"),
    ):
        assert server.chat("refuse", stream=stream) == 400


@pytest.mark.parametrize(("stream", "status"), [(False, 500), (True, 200)])
def test_a_failure_is_one_whatever_the_status_said_before(
    stream: bool, status: int, server: Server
) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="failed", status=str(status)),
        change(1, "answers_total", modality="text", outcome="failed"),
    ):
        assert server.chat("fail later", stream=stream) == status


@pytest.mark.parametrize(
    ("words", "stream", "status", "state"),
    [
        ("endless", False, "499", "running"),
        ("endless", True, "200", "running"),
        ("hang", False, "499", "waiting"),
        ("hang", True, "", "waiting"),
    ],
)
def test_a_request_runs_or_waits_until_its_client_hangs_up(
    words: str, stream: bool, status: str, state: str, server: Server
) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="cancelled", status=status),
        change(1, "answers_total", modality="text", outcome="cancelled"),
        change(0, "num_requests_running"),
        change(0, "num_requests_waiting"),
    ):
        body = json.dumps({**chat_body(words), "stream": stream})
        head = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        port = int(server.gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            with server.moves(change(1, f"num_requests_{state}")):
                client.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
            if status == "200":
                client.recv(1)


def test_pictures_are_counted_without_previews(images_server: Server) -> None:
    with images_server.moves(
        change(2, "pictures_total", modality="image"),
        change(2, "prompt_tokens_total", modality="image"),
        change(1, "requests_total", endpoint=PICTURES, outcome="finished", status="200"),
    ):
        more = {"n": 2, "stream": True, "partial_images": 2}
        assert images_server.post(PICTURES, prompt="a cat", **more) == 200


def test_a_stage_that_dies_is_down_until_it_is_ready_again(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as running:
        server = Server(running)
        talker = {"stage": "talker"}
        with server.moves(change(0, "stage_up", **talker)):
            with server.moves(
                change(-1, "stage_up", **talker), change(1, "stage_restarts_total", **talker)
            ):
                running.stages.is_loading = {"talker"}
                running.do(lambda: running.stages.stages["talker"].die("killed"))
            with server.moves(
                change(1, "requests_total", endpoint=CHAT, outcome="refused", status="503")
            ):
                assert server.chat("words", **SPOKEN) == 503
            running.do(lambda: running.stages.stages["talker"].become_ready())


def test_it_is_open_and_counts_who_has_no_key(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, keys=Keys(["sk-ann"])) as guarded,
        Server(guarded).moves(
            change(1, "requests_total", endpoint=CHAT, outcome="refused", status="401"),
        ),
    ):
        assert Server(guarded).chat("words") == 401


def test_paths_that_are_not_there_make_no_series(server: Server) -> None:
    assert server.post("/v1/none") == 404
    endpoints = {
        one.labels.get("endpoint") for family in server.families() for one in family.samples
    }
    assert endpoints <= {None, CHAT, SPEECH}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "finished"), (400, "refused"), (429, "refused"), (499, "cancelled"), (500, "failed"),
     (503, "refused"), (504, "failed")],
)  # fmt: skip
def test_what_a_status_says(status: int, outcome: str) -> None:
    assert of_status(status) is Outcome(outcome)


def test_the_documentation_lists_every_metric(server: Server, images_server: Server) -> None:
    assert server.chat("words", **SPOKEN) == 200  # a metric without a sample tells no labels
    assert images_server.post(PICTURES, prompt="a cat") == 200
    told: dict[str, tuple[str, set[str]]] = {}
    for family in (*server.families(), *images_server.families()):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for one in family.samples for label in one.labels} - {"le"}
        told[name] = family.type, labels | told.get(name, ("", set()))[1]
        assert family.documentation
    section = DOCS.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    listed = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, kind, labelled, _ = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall(r"`(\w+)`", names):
                listed[name] = kind, set(re.findall(r"`(\w+)`", labelled))
    assert listed == told
