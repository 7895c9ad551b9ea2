"""GET /metrics of the server: its stages and channels, its paths, and its statuses."""

import time
from pathlib import Path

import pytest
from support.gateway.metered import CHAT, PICTURES, SPEECH, SPOKEN, Server, change
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.repository.metrics_docs import documented, exposed
from support.waiting import wait_until

from omnistage.connectors.chunk import Chunk
from omnistage.server.common.outcome import Outcome, of_status
from omnistage.server.http.access.keys import Keys
from omnistage.stages.messages.families import MetricFamily
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, Metrics


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
