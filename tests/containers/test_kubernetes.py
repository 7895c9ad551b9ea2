"""The manifests of docker/kubernetes fit the server: its routes, options, metrics and its end."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.gateway.serving import OMNI, running_gateway
from support.repository.command_line import GROUP
from support.repository.containers import DOCKER, command_of, last, services
from support.repository.metrics_docs import documented

from omnistage.server.serve import HANG_UP_S
from omnistage.stage_configs.overrides import any_override

FOLDER = DOCKER / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [*yaml.safe_load_all((FOLDER / "server.yaml").read_text())]
BY_KIND = {document["kind"]: document for document in DOCUMENTS}
POD = BY_KIND["Deployment"]["spec"]["template"]
(SERVER,) = POD["spec"]["containers"]
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
OUTSIDE = {"HF_TOKEN"}  # of Hugging Face's hub, which compose.yaml hands on as well


def served_with(name: str) -> str:
    """The value of an option of the server in the Deployment."""
    words = [*SERVER["command"], *SERVER["args"]]
    return str(words[words.index(name) + 1])


def drain_s() -> float:
    override = any_override(served_with("--set"))
    assert override.place == ("deadlines", "drain_s")
    return float(override.value)


def test_there_is_one_of_each_kind_and_all_have_the_name() -> None:
    assert sorted(BY_KIND) == [
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Service",
    ]
    assert len(DOCUMENTS) == len(BY_KIND)
    names = {document["metadata"]["name"] for document in DOCUMENTS}
    assert names == {"omnistage", "omnistage-models"}


def test_the_command_is_one_of_ours_with_options_that_it_has() -> None:
    words: list[str] = [*SERVER["command"], *SERVER["args"]]
    program, command, *more = words
    assert program == "omnistage"
    GROUP.commands[command].make_context(command, [*more])
    compose = command_of(services()["omni"])
    assert more[0] == compose[2]  # the model of compose.yaml
    assert SERVER["image"] == services()["omni"]["image"]


def test_every_probe_asks_the_port_that_the_server_listens_on() -> None:
    (port,) = SERVER["ports"]
    assert str(port["containerPort"]) == served_with("--port")
    assert served_with("--host") == "0.0.0.0"
    for probe in PROBES:
        assert SERVER[probe]["httpGet"]["port"] == port["name"]
    (of_service,) = BY_KIND["Service"]["spec"]["ports"]
    assert of_service["targetPort"] == port["name"]
    (rule,) = BY_KIND["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": port["name"]}]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("loading", {"startupProbe": 503, "readinessProbe": 503, "livenessProbe": 200}),
        ("ready", {"startupProbe": 200, "readinessProbe": 200, "livenessProbe": 200}),
        ("stopping", {"startupProbe": 503, "readinessProbe": 503, "livenessProbe": 200}),
    ],
)
def test_probes_say_what_they_should(state: str, expected: dict[str, int], tmp_path: Path) -> None:
    loading = frozenset({"talker"} if state == "loading" else set())
    with running_gateway(tmp_path, OMNI, loading=loading) as gateway:
        if state == "stopping":
            gateway.do(gateway.runtime.flights.stop_admitting)
        for probe, status in expected.items():
            path = SERVER[probe]["httpGet"]["path"]
            assert httpx.get(f"{gateway.url}{path}").status_code == status, probe


def test_annotations_name_the_page_of_metrics() -> None:
    annotations = POD["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == served_with("--port")
    assert annotations["prometheus.io/path"] == "/metrics"


def environment_of(pod: dict[str, Any]) -> list[str]:
    return [one["name"] for container in pod["containers"] for one in container.get("env", ())]


def test_variables_are_those_of_options() -> None:
    known = {
        option.envvar or f"OMNISTAGE_{option.name.upper()}"
        for option in GROUP.commands["serve"].params
        if option.param_type_name == "option"
    }
    assert set(environment_of(POD["spec"])) <= known | OUTSIDE


def test_the_server_has_time_to_end_in_order_before_it_is_killed() -> None:
    (word, seconds) = SERVER["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    readiness = SERVER["readinessProbe"]
    assert int(seconds) > readiness["periodSeconds"] * readiness["failureThreshold"]
    stages_s = 15  # each may be asked, and killed in the end
    needed = int(seconds) + drain_s() + HANG_UP_S + stages_s
    assert POD["spec"]["terminationGracePeriodSeconds"] >= needed


def test_a_start_may_take_as_long_as_the_image_allows() -> None:
    startup = SERVER["startupProbe"]
    (minutes,) = re.findall(r"--start-period=(\d+)m", last("HEALTHCHECK", "docker/Dockerfile").rest)
    assert startup["periodSeconds"] * startup["failureThreshold"] == int(minutes) * 60
    deadline = BY_KIND["Deployment"]["spec"]["progressDeadlineSeconds"]
    assert deadline > startup["periodSeconds"] * startup["failureThreshold"]


def test_selectors_find_the_pods() -> None:
    labels = POD["metadata"]["labels"]
    selectors = [BY_KIND["Service"]["spec"]["selector"]]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors.append(BY_KIND[kind]["spec"]["selector"]["matchLabels"])
    selectors.append(BY_KIND["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"])
    assert all(selector == labels for selector in selectors)


def test_servers_are_scaled_by_a_metric_of_the_server() -> None:
    scaler = BY_KIND["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == BY_KIND["Deployment"]["metadata"]["name"]
    (metric,) = scaler["metrics"]
    kind, labels = documented()[metric["pods"]["metric"]["name"]]
    assert kind == "gauge"
    assert not labels  # one value a Pod
    assert scaler["minReplicas"] == BY_KIND["Deployment"]["spec"]["replicas"]


def test_a_pod_with_stages_has_a_gpu_its_channels_in_memory_and_its_caches() -> None:
    pod = POD["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert set(mounted) == {"/dev/shm", *last("VOLUME", "docker/Dockerfile").words}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes[mounted["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert set(volumes) == set(mounted.values())
    claim = volumes[mounted["/cache/models"]]["persistentVolumeClaim"]["claimName"]
    assert claim == BY_KIND["PersistentVolumeClaim"]["metadata"]["name"]
    user = int(last("USER", "docker/Dockerfile").rest)
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    assert pod["shareProcessNamespace"]  # someone takes in what killed stages leave
