"""GET /metrics as Prometheus reads it."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from support.gateway import MODEL, OMNI, RunningGateway, running_gateway
from support.metrics_docs import documented, exposed, families_in
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.server.common.outcome import Outcome, of_status
from omnistage.server.http.access.keys import Keys
from omnistage.stages.messages.families import MetricFamily
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, Metrics

CHAT, SPEECH, PICTURES = "/v1/chat/completions", "/v1/audio/speech", "/v1/images/generations"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "wav"}}

Change = tuple[float, str, dict[str, str]]


def change(by: float, name: str, **labels: str) -> Change:
    return by, f"omnistage_{name}", labels


class Server:
    """A gateway whose counts nobody else moves."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway

    def page(self) -> str:
        response = httpx.get(f"{self.gateway.url}/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return response.text

    def families(self) -> list[Metric]:
        return families_in(self.page())

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
        deadline = time.monotonic() + 600
        while (values := self.values(changes)) != pytest.approx(wanted):
            assert time.monotonic() < deadline, (changes, values, wanted)

    def post(self, url: str, **body: Any) -> int:
        body["model"] = MODEL
        return httpx.post(self.gateway.url + url, json=body, timeout=600).status_code

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
        talker = {"stage": "talker", "replica": "0"}
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
    for one in (server, images_server):
        measure(one.gateway, *one.gateway.stages.stages)
        wait_until(lambda one=one: "age_seconds{" in one.page())  # type: ignore[misc]
    told = exposed(server.page() + images_server.page())
    told = {name: about for name, about in told.items() if name != "fake_total"}
    assert told == documented("The gateway", "Stages", "Channels", "Processes")


# What stages measure


def measure(gateway: RunningGateway, *stages: str, value: float = 1.0) -> None:
    """Let fake stages send a metric of their own."""
    for name in stages:
        labels = f'{{replica="0",stage="{name}"}}'
        heading = "# HELP fake_total Fake.\n# TYPE fake_total counter\n"
        family = MetricFamily("fake_total", heading, f"fake_total{labels} {value}\n")
        outputs = gateway.stages.stages[name].outputs
        told = Chunk(ABOUT_ITSELF, Metrics([family]))
        gateway.do(lambda send=outputs.send, told=told: send(told))  # type: ignore[misc]


def fake_values(server: Server) -> dict[str, float]:
    """By stage."""
    found = [family for family in server.families() if family.name == "fake"]
    assert len(found) <= 1, "the samples of a metric stand together"
    return {one.labels["stage"]: one.value for family in found for one in family.samples}


def ages(server: Server) -> dict[str, float]:
    """Of what stages have measured."""
    name = "omnistage_stage_metrics_age_seconds"
    (family,) = (family for family in server.families() if family.name == name)
    return {one.labels["stage"]: one.value for one in family.samples}


def test_what_several_stages_measure_stands_below_one_heading(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as running:
        server = Server(running)
        assert fake_values(server) == ages(server) == {}
        measure(running, "thinker", "talker")
        wait_until(lambda: fake_values(server) == {"thinker": 1.0, "talker": 1.0})
        assert server.page().count("# HELP fake_total") == 1
        measure(running, "talker", value=2.0)
        wait_until(lambda: fake_values(server) == {"thinker": 1.0, "talker": 2.0})
        assert ages(server).keys() == {"thinker", "talker"}


def test_a_scrape_waits_for_no_stage_and_says_how_old_its_metrics_are(tmp_path: Path) -> None:
    """The stages neither read nor say anything any more, as processes that are stopped."""
    with running_gateway(tmp_path, {**OMNI, "deadlines": {"hang_s": 60}}) as running:
        server = Server(running)
        measure(running, *running.stages.stages)
        wait_until(lambda: len(fake_values(server)) == 3)
        for stage in running.stages.stages.values():
            running.do(stage.freeze)
            running.do(stage.stop_reading)
        sent = {name: stage.num_sent for name, stage in running.stages.stages.items()}
        seen = {name: len(stage.seen) for name, stage in running.stages.stages.items()}
        before = ages(server)
        time.sleep(0.3)
        for _ in range(3):
            assert fake_values(server) == dict.fromkeys(sent, 1.0)
        assert all(age >= before[name] + 0.3 for name, age in ages(server).items())
        for name, stage in running.stages.stages.items():
            assert (stage.num_sent, len(stage.seen)) == (sent[name], seen[name])
            assert stage.requests.receive() is None  # nor is anything waiting for it


def test_a_stage_that_has_ended_measures_nothing(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as running:
        server = Server(running)
        measure(running, "thinker", "talker")
        wait_until(lambda: len(fake_values(server)) == 2)
        running.stages.is_loading = {"talker"}
        running.do(lambda: running.stages.stages["talker"].die("killed"))
        wait_until(lambda: fake_values(server) == {"thinker": 1.0})
        assert ages(server).keys() == {"thinker"}
        wait_until(lambda: running.stages.launched.count("talker") == 2)
        running.do(lambda: running.stages.stages["talker"].become_ready())
        measure(running, "talker", value=5.0)
        wait_until(lambda: fake_values(server).get("talker") == 5.0)


# Channels


def test_channels_count_what_both_ends_did(server: Server) -> None:
    ends = {"source": "gateway", "target": "thinker", "channel": "requests", "replica": "0"}
    back = {**ends, "source": "thinker", "target": "gateway", "channel": "outputs"}
    before = server.values((change(0, "channel_bytes_total", **ends),))
    with server.moves(
        change(1, "channel_chunks_total", **ends),
        change(1, "channel_received_chunks_total", **ends),
        change(0, "channel_backlog_chunks", **ends),
        change(0, "ring_used_bytes", **ends),
    ):
        assert server.chat("words") == 200
    assert server.values((change(0, "channel_bytes_total", **ends),)) > before
    sent, received, wait_s, size = server.values(
        (
            change(0, "channel_chunks_total", **back),
            change(0, "channel_received_chunks_total", **back),
            change(0, "channel_wait_seconds_total", **back),
            change(0, "ring_size_bytes", **back),
        )
    )
    assert sent >= received > 5  # words, and what the stage says of itself
    assert wait_s > 0
    assert size == 1 << 20


# The pace of audio


@pytest.mark.parametrize(("words", "num_packets"), [("words", 2), ("short", 1), ("silent", 0)])
def test_the_pace_of_an_answers_audio_is_counted(
    words: str, num_packets: int, server: Server
) -> None:
    modality = {"modality": "text+audio"}
    with server.moves(
        change(bool(num_packets), "real_time_factor_count", **modality),
        change(bool(num_packets), "audio_stall_seconds_count", **modality),
        change(max(0, num_packets - 1), "audio_gap_seconds_count", **modality),
        change(1, "request_wait_seconds_count", **modality),
    ):
        assert server.chat(words, **SPOKEN) == 200
