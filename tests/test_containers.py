"""The container files fit each other, the command line, the API and the metrics."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import dashboard
import pytest
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support.containers import (
    DOCKER,
    ROOT,
    command_of,
    compose,
    dockerfile,
    environment,
    last,
    services,
)
from support.gateway import OMNI, running_gateway
from support.metrics_docs import documented

from omnistage.server.cli import app

FILES = ["docker/Dockerfile", "docker/Dockerfile.cpu"]
OURS = {name: service for name, service in services().items() if "build" in service}
SERVERS = {name: one for name, one in OURS.items() if "demo" not in command_of(one)}
PAGES = OURS.keys() - SERVERS.keys()
# Each lock with the extras of pyproject.toml that it pins.
LOCKS = {"cpu": ("cpu", "demo"), "cuda": ("cuda",)}
PIN = re.compile(r"^([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$")
DASHBOARD = json.loads((DOCKER / "grafana/dashboards/omnistage.json").read_text())


# The Dockerfiles


@pytest.mark.parametrize("file", FILES)
def test_an_image_is_built_in_stages_and_does_not_run_as_root(file: str) -> None:
    assert len(dockerfile(file)) > 1
    user = int(last("USER", file).rest)
    assert user != 0
    assert any(f"--uid {user} " in one.rest for one in dockerfile(file)[-1] if one.name == "RUN")


@pytest.mark.parametrize("file", FILES)
def test_what_an_image_is_copied_from_exists_and_is_sent_to_the_builder(file: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored  # nothing else is
    copies = [one for stage in dockerfile(file) for one in stage if one.name == "COPY"]
    sources = [word for one in copies if not one.flags for word in one.words[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert source == "." or any(
            fnmatch(source, name) for name in sent + [f"{n}/*" for n in sent]
        )


def test_the_builder_is_sent_all_that_the_package_is_made_of() -> None:
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = (ROOT / ".pkg" / "omnistage").iterdir()
    folders = [path.name for path in package if path.is_symlink()]  # its files are in .pkg
    assert folders
    for name in [*folders, ".pkg", "pyproject.toml", project["readme"], *project["license-files"]]:
        assert f"!{name}" in sent


@pytest.mark.parametrize("file", FILES)
def test_models_and_compiled_kernels_are_kept_in_volumes(file: str) -> None:
    volumes = [Path(place) for place in last("VOLUME", file).words]
    variables = environment(file)
    for name in ("HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert any(Path(variables[name]).is_relative_to(volume) for volume in volumes), name
    made = next(one.rest for one in dockerfile(file)[-1] if "install --directory" in one.rest)
    assert all(str(volume) in made.split() for volume in volumes)  # and owned by the user


@pytest.mark.parametrize("file", FILES)
def test_the_healthcheck_passes_when_a_server_is_ready_and_not_before(
    file: str, tmp_path: Path
) -> None:
    kind, _, check = last("HEALTHCHECK", file).rest.rpartition("CMD ")
    assert "--start-period=" in kind
    with running_gateway(tmp_path, OMNI, loading=frozenset({"talker"})) as gateway:
        command = [word.replace("http://127.0.0.1:8000", gateway.url) for word in json.loads(check)]
        assert any(f"{gateway.url}/ready" in word for word in command)
        command[0] = sys.executable
        assert subprocess.run(command, capture_output=True).returncode == 1
        gateway.do(lambda: gateway.stages.stages["talker"].become_ready())
        assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("file", FILES)
def test_an_image_s_dependencies_are_those_of_a_lock(file: str) -> None:
    installs = [
        command
        for stage in dockerfile(file)
        for one in stage
        if one.name == "RUN"
        for command in one.rest.split("&&")
        if " install " in command and "apt-get" not in command and "--directory" not in command
    ]
    assert len(installs) >= 3
    for command in installs:
        is_pinned = "--require-hashes" in command and "--requirements" in command
        is_ours = "--no-deps /wheel/" in command
        assert is_pinned or is_ours or re.search(r"install --no-cache-dir uv==\d", command), command


# The locks


def test_what_made_the_locks_installs_them() -> None:
    files = [ROOT / name for name in ("Makefile", *FILES)]
    assert len({re.findall(r"uv==([\d.]+)", path.read_text())[0] for path in files}) == 1


def pins(name: str) -> dict[str, Version]:
    """The versions of a lock; each line of it has a version and hashes."""
    text = (DOCKER / "lock" / f"{name}.txt").read_text()
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    found: dict[str, Version] = {}
    for line in lines:
        if not line.startswith("#"):
            pin = PIN.match(line)
            assert pin, line
            found[canonicalize_name(pin[1])] = Version(pin[2])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_all_that_the_project_requires(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in LOCKS[name]:
        wanted += project["optional-dependencies"][extra]
    locked = pins(name) | (pins("torch-cpu") if name == "cpu" else {})
    for requirement in map(Requirement, wanted):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement
    for library in ("av", "soundfile", "pillow"):  # sound and images
        assert library in locked


def test_the_packages_that_share_nvidia_s_modules_are_of_one_release() -> None:
    """An older cuda-python brings modules of its own, over those of cuda-bindings."""
    locked = pins("cuda")
    assert locked["cuda-python"] == locked["cuda-bindings"]


def test_kernels_are_compiled_by_the_cuda_that_torch_has() -> None:
    locked = pins("cuda")
    for name in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-cccl", "cuda-runtime"):
        assert locked[f"nvidia-{name}"].release[:2] == locked["cuda-toolkit"].release[:2]


def test_the_cpu_image_has_the_torch_of_the_makefile_in_its_cpu_build() -> None:
    (torch,) = re.findall(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pins("torch-cpu") == {"torch": Version(f"{torch}+cpu")}
    assert "torch" not in pins("cpu")


def container_files() -> list[Path]:
    pages = [ROOT / "docs" / name for name in ("docker.md", "kubernetes.md", "scaling.md")]
    beside = [ROOT / "compose.yaml", ROOT / ".dockerignore", *pages]
    return [*beside, *(path for path in sorted(DOCKER.rglob("*")) if path.is_file())]


@pytest.mark.parametrize("path", container_files(), ids=lambda path: path.name)
def test_no_container_file_names_a_host_beyond_this_machine_and_its_services(path: Path) -> None:
    named = set(re.findall(r"https?://([\w.-]+)", path.read_text()))
    assert named <= {"localhost", "127.0.0.1", *services()}
    assert not re.search(r"--(extra-)?index-url|--trusted-host", path.read_text())


# compose.yaml


def test_every_service_is_in_its_profile() -> None:
    assert {name: service.get("profiles") for name, service in services().items()} == {
        "server": None,
        "page": None,
        "omni": ["gpu"],
        "omni-page": ["gpu"],
        "images": ["images"],
        "images-page": ["images"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_files_that_services_name_exist() -> None:
    for service in services().values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
            assert service["build"]["context"] == "."
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            there = (ROOT / source).exists() if source.startswith(".") else source in volumes()
            assert there, volume


def volumes() -> dict[str, Any]:
    found: dict[str, Any] = compose()["volumes"]
    return found


def test_images_of_others_have_a_version_and_no_registry() -> None:
    for name, service in services().items():
        if name not in OURS:
            assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])


def test_ports_are_open_on_this_machine_only_unless_asked_for_and_clash_nowhere() -> None:
    ports = [port for service in services().values() for port in service["ports"]]
    found = [re.fullmatch(r"\$\{OMNISTAGE_ADDRESS:-127\.0\.0\.1\}:(\d+):\d+", one) for one in ports]
    outer = [port[1] for port in found if port]
    assert len(outer) == len(ports) == len(set(outer))


@pytest.mark.parametrize("name", OURS)
def test_a_port_is_the_one_that_the_command_listens_on(name: str) -> None:
    (port,) = OURS[name]["ports"]
    inner = port.split(":")[-1]
    command = " ".join(command_of(OURS[name]))
    if command == "serve-tiny":
        command = (DOCKER / "serve-tiny").read_text()
    assert f"--port {inner}" in command
    assert "--host 0.0.0.0" in command
    if name in SERVERS:
        assert last("EXPOSE", OURS[name]["build"]["dockerfile"]).rest == inner


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_room_for_its_channels_and_ends_in_order(name: str) -> None:
    service = SERVERS[name]
    assert re.fullmatch(r"\d+g", service["shm_size"])
    assert service["init"] is True
    assert service["stop_grace_period"] == "60s"


@pytest.mark.parametrize("name", ["omni", "images"])
def test_a_server_with_a_gpu_keeps_models_and_kernels(name: str) -> None:
    service = SERVERS[name]
    mounted = {volume.split(":")[1] for volume in service["volumes"]}
    assert mounted == set(last("VOLUME", service["build"]["dockerfile"]).words)
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    capabilities = environment(service["build"]["dockerfile"])["NVIDIA_DRIVER_CAPABILITIES"]
    assert "compute" in capabilities.split(",")  # with it NVIDIA's toolkit brings MPS


def test_every_server_has_a_page_that_waits_for_it() -> None:
    of_page = {}
    for name in PAGES:
        command = command_of(OURS[name])
        host, port = re.fullmatch(  # type: ignore[union-attr]
            r"http://([\w-]+):(\d+)/v1", command[command.index("--url") + 1]
        ).groups()
        assert OURS[name]["depends_on"] == {host: {"condition": "service_healthy"}}
        assert SERVERS[host]["ports"][0].endswith(f":{port}")
        of_page[name] = host
    assert sorted(of_page.values()) == sorted(SERVERS)


# Commands


GROUP: Any = typer.main.get_command(app)


def parse(command: str, arguments: list[str]) -> None:
    """Raises if our command line has no such command, or the command takes no such arguments."""
    GROUP.commands[command].make_context(command, arguments)


def commands() -> dict[str, list[str]]:
    """Every call of our command line in a container file."""
    found = {f"compose {name}": command_of(service) for name, service in OURS.items()}
    found |= {file: last("CMD", file).words for file in FILES}
    for number, line in enumerate((DOCKER / "serve-tiny").read_text().splitlines()):
        words = shlex.split(line, comments=True)
        if "omnistage" in words:
            found[f"serve-tiny {number}"] = words[words.index("omnistage") :]
    return {name: words for name, words in found.items() if words != ["serve-tiny"]}


@pytest.mark.parametrize("name", commands())
def test_a_command_is_one_of_ours_with_options_that_it_has(name: str) -> None:
    program, command, *arguments = commands()[name]
    assert program == "omnistage"
    parse(command, arguments)


@pytest.mark.parametrize("arguments", [["model", "--prot", "8000"], [], ["model", "--mps", "yes"]])
def test_a_wrong_call_would_be_found(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match=r"2|Missing parameter|is not one of") as wrong:
        parse("serve", arguments)
    said = f"{wrong.value} {capsys.readouterr().err}"
    assert re.search(r"there is no --prot|Missing parameter|is not one of", said)


def test_the_calls_of_the_script_are_found() -> None:
    assert [words[1] for name, words in commands().items() if "serve-tiny" in name] == [
        "tiny",
        "serve",
    ]


# Monitoring


def test_prometheus_asks_every_server() -> None:
    parsed = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    (job,) = parsed["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:8000" for name in SERVERS]}]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert services()["prometheus"]["ports"][0].endswith(":9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards/omnistage.yaml").read_text())[
        "providers"
    ]
    grafana = services()["grafana"]
    places = {volume.split(":")[0]: volume.split(":")[1] for volume in grafana["volumes"]}
    assert provider["options"]["path"] == places["./docker/grafana/dashboards"]
    assert places["./docker/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/omnistage.json"
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": source["uid"]}


def series_of(name: str, kind: str, labels: set[str]) -> dict[str, set[str]]:
    """The series of a metric, with their labels."""
    if kind != "histogram":
        return {name: labels}
    return {
        f"{name}_bucket": labels | {"le"},
        f"{name}_sum": labels,
        f"{name}_count": labels,
    }


# Every series that docs/metrics.md lists: tests hold it to the pages of servers.
SERIES = {
    series: labels
    for name, (kind, listed) in documented().items()
    for series, labels in series_of(name, kind, set(listed)).items()
}
METRIC = re.compile(r"\b(?:omnistage_|vllm:|process_)\w+")


def panels() -> list[dict[str, Any]]:
    """Those that show something; the others are headings."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard with its legend."""
    targets = [target for panel in panels() for target in panel["targets"]]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def test_the_dashboard_is_what_its_script_makes() -> None:
    assert dashboard.FILE == DOCKER / "grafana/dashboards/omnistage.json"
    assert dashboard.FILE.read_text() == dashboard.text()


@pytest.mark.parametrize(("query", "legend"), queries())
def test_a_query_of_the_dashboard_names_metrics_and_labels_that_are_documented(
    query: str, legend: str
) -> None:
    metrics = METRIC.findall(query)
    assert metrics
    prometheus_adds = {"instance", "job"}
    asked = {word for found in re.findall(r"by \(([^)]*)\)", query) for word in found.split(", ")}
    matched = set(re.findall(r"[{,]\s*(\w+)\s*=~?", query))
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    for metric in metrics:
        assert metric in SERIES
        assert asked | matched | shown <= SERIES[metric] | prometheus_adds
    if asked:
        assert shown <= asked  # what is summed away cannot be shown


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for query, _ in queries()
        for name in METRIC.findall(query)
    }
    assert {name for name in documented() if name.startswith("omnistage_")} <= shown


def test_no_panel_of_the_dashboard_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        across = range(place["x"], place["x"] + place["w"])
        down = range(place["y"], place["y"] + place["h"])
        assert across.stop <= 24
        cells = {(x, y) for x in across for y in down}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_choice_of_servers_is_a_label_of_a_metric() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    metric, label = re.fullmatch(  # type: ignore[union-attr]
        r"label_values\((\w+), (\w+)\)", variable["query"]["query"]
    ).groups()
    assert metric in SERIES
    assert label == "instance"
    for query, _ in queries():
        assert query.count(f'instance=~"${variable["name"]}"') == len(METRIC.findall(query))
