"""Replicas over HTTP: /health, /ready and /metrics by replica, commands to all, /admin/scale."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.described import assert_described
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway
from support.repository.metrics_docs import families_in
from support.waiting import wait_until

from omnistage.server.endpoints.present import channel_labels
from omnistage.server.http.access.keys import Keys
from omnistage.stages.messages.families import stage_labels
from omnistage.stages.messages.to_gateway import CommandResult, Failed

CHAT = "/v1/chat/completions"
KEY = {"authorization": "Bearer sk-admin"}
TALKERS = ["talker@0", "talker@1"]
WORDS = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}
SPOKEN = {**WORDS, "modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "wav"}}
LORA = {"name": "ink", "path": "/loras/ink"}


class Replicated:
    """A gateway with two talkers of at most three, and a client with the admin key."""

    def __init__(self, gateway: RunningGateway, client: httpx.Client) -> None:
        self.gateway = gateway
        self.client = client
        self.told: list[tuple[str, str]] = []
        self.refusing = ""
        gateway.stages.obey = self._obey

    def _obey(self, stage: str, command: str, arguments: Mapping[str, Any]) -> CommandResult:
        self.told.append((stage, command))
        if stage == self.refusing:
            return CommandResult(error=Failed(400, "no room", "invalid_request_error", stage))
        return CommandResult({"asleep": ["weights"] if command == "sleep" else []})

    def admin(self, path: str, /, **body: Any) -> httpx.Response:
        return self.client.post(f"/admin/{path}", json=body)

    @property
    def health(self) -> dict[str, Any]:
        response = self.client.get("/health")
        assert_described(self.client, response)
        stages: dict[str, Any] = response.json()["stages"]
        return stages

    def take(self, *commands: str) -> None:
        """The talkers take these now."""

        def become_ready() -> None:
            self.gateway.stages.commands = dict.fromkeys(commands, "")
            for name in TALKERS:
                self.gateway.stages.stages[name].become_ready()

        self.gateway.do(become_ready)
        links = self.gateway.runtime.fleet.replicas_of("talker")
        wait_until(lambda: all(set(link.record.commands) == set(commands) for link in links))

    def speaks(self) -> int:
        return self.client.post(CHAT, json=SPOKEN).status_code

    def kill(self, name: str) -> None:
        stage = self.gateway.stages.stages[name]
        self.gateway.do(lambda: stage.die("signal SIGKILL"))

    def wait_for(self, name: str, state: str) -> None:
        wait_until(lambda: self.health[name]["state"] == state)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Replicated]:
    kinds: Any = OMNI["stages"]
    talker = {**kinds["talker"], "replicas": 2, "max_replicas": 3}
    deadlines = {"command_s": 60}
    graph = {**OMNI, "stages": {**kinds, "talker": talker}, "deadlines": deadlines}
    with (
        running_gateway(tmp_path, graph, admin_keys=Keys(["sk-admin"])) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600, headers=KEY) as client,
    ):
        yield Replicated(gateway, client)


# What is told


def test_health_and_ready_tell_of_each_replica(server: Replicated) -> None:
    assert list(server.health) == ["thinker", *TALKERS, "code2wav"]
    server.gateway.stages.is_loading = set(TALKERS)
    server.kill("talker@0")
    server.wait_for("talker@0", "loading")
    assert server.client.get("/ready").status_code == 200
    assert server.speaks() == 200
    server.kill("talker@1")
    server.wait_for("talker@1", "loading")
    refused = server.client.get("/ready").json()["error"]["message"]
    assert refused == "Not ready: talker@0 (loading), talker@1 (loading)."
    assert server.speaks() == 503
    assert server.client.post(CHAT, json=WORDS).status_code == 200
    assert server.health["talker@0"]["ended_by"] == "signal SIGKILL"


def test_metrics_have_the_replica_as_a_label(server: Replicated) -> None:
    assert server.speaks() == 200
    families = {one.name: one for one in families_in(server.client.get("/metrics").text)}
    up = [sample.labels for sample in families["omnistage_stage_up"].samples]
    assert [(one["stage"], one["replica"]) for one in up] == [
        ("thinker", "0"),
        ("talker", "0"),
        ("talker", "1"),
        ("code2wav", "0"),
    ]
    sent = families["omnistage_channel_chunks"].samples
    channels = {tuple(sample.labels.values()) for sample in sent}
    assert len(channels) == len(sent)
    numbers = {
        one.labels["replica"]
        for one in sent
        if (one.labels["source"], one.labels["target"]) == ("thinker", "talker")
    }
    assert numbers == {"0", "1"}


@pytest.mark.parametrize(
    ("address", "labels"),
    [
        ("thinker.talker.rows", ("thinker", "talker", "rows", "0")),
        ("gateway.talker@1", ("gateway", "talker", "requests", "1")),
        ("talker@0.gateway", ("talker", "gateway", "outputs", "0")),
        ("thinker.talker@2.open", ("thinker", "talker", "open", "2")),
        ("talker@0.code2wav@1.rows", ("talker", "code2wav", "rows", "0-1")),
    ],
)
def test_a_channel_is_labelled_by_the_numbers_of_its_ends(
    address: str, labels: tuple[str, ...]
) -> None:
    assert channel_labels(address) == labels


def test_what_a_replica_measures_is_labelled_by_its_stage_and_its_number() -> None:
    assert stage_labels("talker") == {"stage": "talker", "replica": "0"}
    assert stage_labels("talker@1") == {"stage": "talker", "replica": "1"}


# Commands


def test_a_command_goes_to_all_replicas_of_a_stage(server: Replicated) -> None:
    answer = server.admin("sleep", stages=["talker"])
    assert answer.json() == {"stages": {name: {"asleep": ["weights"]} for name in TALKERS}}
    assert server.told == [(name, "sleep") for name in TALKERS]
    assert server.speaks() == 503
    refused = server.client.get("/ready").json()["error"]["message"]
    assert refused == "Not ready: talker@0 (asleep), talker@1 (asleep)."
    assert server.admin("wake", stages=["talker"]).status_code == 200
    assert server.speaks() == 200
    wrong = server.admin("sleep", stages=["talker@0"])
    assert wrong.json()["error"]["param"] == "stages[0]"


def test_a_command_that_one_replica_cannot_take_is_sent_to_none(server: Replicated) -> None:
    server.gateway.stages.is_loading = {"talker@1"}
    server.kill("talker@1")
    server.wait_for("talker@1", "loading")
    for body in ({"stages": ["talker"]}, {}):
        refused = server.admin("lora/add", **LORA, **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
    assert server.told == []


def test_what_all_replicas_were_told_is_repeated_to_those_that_start_later(
    server: Replicated,
) -> None:
    server.take("add_lora", "remove_lora")
    assert server.admin("lora/add", **LORA, stages=["talker"]).status_code == 200
    server.kill("talker@1")
    wait_until(lambda: server.told.count(("talker@1", "add_lora")) == 2)
    assert server.admin("scale", stage="talker", replicas=3).status_code == 200
    wait_until(lambda: server.told[-1] == ("talker@2", "add_lora"))
    assert server.admin("lora/remove", name="ink", stages=["talker"]).status_code == 200
    server.told.clear()
    server.kill("talker@0")
    wait_until(lambda: server.health["talker@0"]["generation"] == 2)
    server.wait_for("talker@0", "ready")
    assert server.told == []


def test_an_adapter_that_one_replica_refuses_is_taken_from_the_others(
    server: Replicated,
) -> None:
    server.take("add_lora", "remove_lora")
    server.refusing = "talker@1"
    assert server.admin("lora/add", **LORA, stages=["talker"]).status_code == 400
    assert server.told[2:] == [("talker@0", "remove_lora")]
    server.told.clear()
    server.kill("talker@0")
    wait_until(lambda: server.health["talker@0"]["generation"] == 2)
    server.wait_for("talker@0", "ready")
    assert server.told == []


def test_a_replica_that_differs_is_named_when_nothing_else_could_serve(server: Replicated) -> None:
    server.take("load_weights")
    server.refusing = "talker@1"
    assert server.admin("load_weights", path="/other", stages=["talker"]).status_code == 400
    assert server.client.get("/ready").status_code == 200
    assert server.speaks() == 200
    server.gateway.stages.is_loading = {"talker@0"}
    server.kill("talker@0")
    server.wait_for("talker@0", "loading")
    refused = server.client.get("/ready")
    assert refused.json()["error"]["message"] == "Not ready: talker@1 (differs)."
    assert refused.status_code == server.speaks() == 503


# Scaling


def test_an_admin_adds_and_removes_replicas(server: Replicated) -> None:
    for count in (3, 1, 2):
        answer = server.admin("scale", stage="talker", replicas=count)
        names = [f"talker@{number}" for number in range(count)]
        assert answer.json() == {"stages": {"talker": {"replicas": names}}}
        assert [name for name in server.health if name.startswith("talker")] == names
        assert server.speaks() == 200


def test_no_request_is_lost_while_replicas_come_and_go(server: Replicated) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.speaks) for _ in range(40)]
        for count in (1, 3, 2, 1, 3):
            assert server.admin("scale", stage="talker", replicas=count).status_code == 200
        assert {one.result() for one in asked} == {200}
    server.gateway.wait_until_idle()


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"stage": "talker", "replicas": 4}, "replicas", "talker has at most 3"),
        ({"stage": "thinker", "replicas": 2}, "replicas", "thinker has at most 1"),
        ({"stage": "talker", "replicas": 0}, "replicas", "greater than or equal to 1"),
        ({"stage": "talker@0", "replicas": 1}, "stage", "is no stage; allowed: thinker, talker"),
        ({"stage": "talker"}, "replicas", "required"),
    ],
)
def test_what_cannot_be_is_refused(
    body: dict[str, Any], param: str, says: str, server: Replicated
) -> None:
    refused = server.admin("scale", **body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert httpx.post(f"{server.gateway.url}/admin/scale", json=body).status_code == 401
