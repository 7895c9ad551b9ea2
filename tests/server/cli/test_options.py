"""Every option of `serve` by the real parser: as a flag, from the environment, in a dry run."""

import dataclasses
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.certificates import certificate
from support.models.onnx_files import model
from support.ports import free_port
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.serving import dry_run
from omnistage.server.http.access.keys import Keys
from omnistage.server.options.gateway import GatewayOptions
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.pick import GRAPHS

runner = CliRunner()
GROUP: Any = typer.main.get_command(cli.app)
TINY = str(GRAPHS / "qwen3_omni_tiny.yaml")
# A value of each option with an argument. FOLDER and what follows it are made for the test.
VALUES = {
    "--admin-key": "sk-admin",
    "--admin-key-file": "FOLDER/keys",
    "--allow-credentials": None,
    "--allowed-headers": "x-mine",
    "--allowed-media-domains": "a.example",
    "--allowed-media-path": "FOLDER",
    "--allowed-methods": "POST",
    "--allowed-origins": "https://b.example",
    "--api-key": "sk-a",
    "--api-key-file": "FOLDER/keys",
    "--client-buffer-mb": "3",
    "--decode-memory-mb": "99",
    "--deterministic": None,
    "--host": "127.0.0.2",
    "--load-format": "dummy",
    "--log-format": "json",
    "--log-level": "warning",
    "--max-first-sound": "0.4",
    "--max-queue": "7",
    "--max-sessions": "5",
    "--answer-ahead": "3",
    "--history-ahead": "4",
    "--model": "other",
    "--mps": "off",
    "--offload": "layerwise",
    "--otlp-endpoint": "http://collector:4318",
    "--port": "PORT",
    "--profile-folder": "FOLDER/profiles",
    "--request-timeout": "2.5",
    "--requests-per-minute": "60",
    "--root-path": "/models",
    "--served-model-name": "name",
    "--session-idle-timeout": "60.5",
    "--session-memory-mb": "8",
    "--session-timeout": "900",
    "--sessions-per-key": "3",
    "--set": "deadlines.start_s=60",
    "--set-default": "talker.temperature=0.7",
    "--ssl-certfile": "FOLDER/cert.pem",
    "--ssl-keyfile": "FOLDER/key.pem",
    "--stage": "thinker.max_model_len=99",
    "--turn-model": "FOLDER/turns.onnx",
    "--videos-at-once": "2",
    "--videos-dir": "FOLDER",
    "--videos-max-age": "60",
    "--videos-max-gib": "3",
    "--videos-max-queue": "5",
    "--voice-alias": "alloy=ethan",
    "--voices": "FOLDER",
    "--webrtc-address": "203.0.113.7",
    "--webrtc-ports": "50000-50100",
}
# What an option has no effect without, or cannot be used with all others.
NEEDS = {
    "--allow-credentials": ["--allowed-origins", "*"],
    "--allowed-headers": ["--allowed-origins", "*"],
    "--allowed-methods": ["--allowed-origins", "*"],
    "--ssl-certfile": ["--ssl-keyfile", "FOLDER/key.pem"],
    "--ssl-keyfile": ["--ssl-certfile", "FOLDER/cert.pem"],
}
OFFLOADED = {"--offload": str(GRAPHS / "diffusers.yaml")}  # a graph with a stage that has it
FLAGS = [max(option.opts, key=len) for option in GROUP.commands["serve"].params]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the options' values name."""
    made = tmp_path_factory.mktemp("options")
    (made / "keys").write_text("sk-file\n")
    certificate(made)
    (made / "turns.onnx").write_bytes(model((1, 80, 800), "ReduceMean", "Sigmoid"))
    return made


class Rehearsed:
    """What a dry run was told to serve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: dict[str, Any] = {}
        monkeypatch.setattr(dry_run, "rehearse", self._rehearse)

    def _rehearse(self, graph: StageGraph, host: str, port: int, options: GatewayOptions) -> None:
        fields = {one.name: getattr(options, one.name) for one in dataclasses.fields(options)}
        kept = {n: v._digests if isinstance(v, Keys) else v for n, v in fields.items()}
        self.said = {"graph": graph, "host": host, "port": port, **kept}

    def of(self, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        """The graph, the address and the options of `serve` with these arguments."""
        result = runner.invoke(cli.app, ["serve", *arguments, "--dry-run"], env=env)
        assert result.exit_code == 0, result.output
        return self.said


def options_of(flag: str) -> list[str]:
    """Both names of an option of `serve`."""
    (found,) = [one.opts for one in GROUP.commands["serve"].params if flag in one.opts]
    return list(found)


def test_there_is_a_value_for_each_option() -> None:
    named = {name for flag in VALUES for name in options_of(flag)}
    assert {flag for flag in FLAGS if flag.startswith("-")} - named == {"--dry-run"}


@pytest.mark.parametrize("flag", sorted(VALUES))
def test_an_option_has_the_same_effect_as_a_flag_and_from_the_environment(
    flag: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    if flag == "--turn-model" and find_spec("onnxruntime") is None:
        pytest.skip("needs onnxruntime")
    rehearsed = Rehearsed(monkeypatch)
    filled = [one.replace("FOLDER", str(folder)) for one in NEEDS.get(flag, [])]
    usual = [OFFLOADED.get(flag, TINY), *([] if flag == "--model" else ["--model", "m"])]
    value = VALUES[flag]
    given = [] if value is None else [filled_in(value, folder)]
    by_flag = rehearsed.of(*usual, *filled, flag, *given)
    variable = f"OMNISTAGE_{flag.removeprefix('--').replace('-', '_').upper()}"
    by_variable = rehearsed.of(*usual, *filled, env={variable: given[0] if given else "1"})
    assert by_flag == by_variable
    if flag == "--model":
        assert by_flag["graph"].model == "other"
        return
    if "--ssl" in flag:
        assert by_flag["tls"].certificate == folder / "cert.pem"
        assert by_flag["tls"].key == folder / "key.pem"
        return
    assert by_flag != rehearsed.of(*usual, *filled)


def filled_in(value: str, folder: Path) -> str:
    """A value with the folder and a free port in it."""
    return value.replace("FOLDER", str(folder)).replace("PORT", str(free_port()))


def test_several_values_of_the_environment_are_separated_by_spaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {"OMNISTAGE_STAGE": "thinker.seed=1 talker.seed=2", "OMNISTAGE_SERVED_MODEL_NAME": "a b"}
    graph = Rehearsed(monkeypatch).of(TINY, "--model", "m", env=env)["graph"]
    assert [graph.stages[name].engine["seed"] for name in ("thinker", "talker")] == [1, 2]
    assert graph.served_names == ("a", "b")


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Rehearsed(monkeypatch).of(
        TINY, "--model", "m", "--max-queue", "3", env={"OMNISTAGE_MAX_QUEUE": "9"}
    )
    assert said["max_requests"] == 3


def test_the_address_that_kubernetes_sets_for_a_service_is_no_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {"OMNISTAGE_PORT": "tcp://10.0.0.1:8000"}
    assert Rehearsed(monkeypatch).of(TINY, "--model", "m", env=env)["port"] == 8000


def test_origins_may_be_a_list_in_json_as_vllm_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--allowed-origins", '["https://a.example", "https://b.example"]']
    cors = Rehearsed(monkeypatch).of(TINY, "--model", "m", *asked)["cors"]
    assert cors.origins == ("https://a.example", "https://b.example")


def test_a_dry_run_prints_what_would_be_served_and_leaves_the_port_free() -> None:
    port = str(free_port())
    command = [sys.executable, "-m", "omnistage.server.cli", "serve", TINY, "--model", "m"]
    more = ["--stage", "thinker.max_model_len=8192", "--set-default", "talker.temperature=0.7"]
    names = ["--served-model-name", "a", "--served-model-name", "b", "--api-key", "sk-secret"]
    done = subprocess.run(
        [*command, *more, *names, "--port", port, "--dry-run"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for said in ("max_model_len: 8192", "default temperature", "a, b", f"127.0.0.1:{port}"):
        assert said in done.stdout
    assert "sk-secret" not in done.stdout + done.stderr
    socket.create_server(("127.0.0.1", int(port))).close()


REFUSED = [
    (["--stage", "thinker.gpus=[0, 1]"], "--stage thinker.gpus=[0, 1]: stages.thinker.gpus: 2"),
    (["--stage", "thinker"], "--stage thinker: must be NAME.KEY=VALUE"),
    (["--set", "edges.9.chunk=whole"], "--set edges.9.chunk=whole: edges is a list"),
    (["--ssl-certfile", "/none.pem"], "--ssl-certfile: there is no file /none.pem"),
    (["--ssl-keyfile", TINY], "--ssl-keyfile: has no effect without --ssl-certfile"),
    (["--ssl-certfile", TINY], "--ssl-certfile, --ssl-keyfile: TLS cannot be served by them"),
    (["--allow-credentials"], "--allow-credentials: has no effect without --allowed-origins"),
    (["--allowed-origins", "a.example"], "'a.example' is no origin such as https://example.org"),
    (["--allowed-origins", '["a'], "is no list in JSON"),
    (["--root-path", "models"], "--root-path: 'models' is no path such as /models"),
    (["--root-path", "/v1/models"], "--root-path: '/v1/models' begins as the server's own paths"),
    (["--model", "/none"], "/none: there is no such folder"),
    (["--webrtc-ports", "many"], "--webrtc-ports: 'many' is not a range of ports such as 50000-"),
    (["--webrtc-ports", "50100-50000"], "--webrtc-ports: '50100-50000' must be a range from 1024"),
    (["--webrtc-ports", "80-90"], "--webrtc-ports: '80-90' must be a range from 1024 to 65535"),
    (["--webrtc-ports", "65000-70000"], "--webrtc-ports: '65000-70000' must be a range from"),
    (["--webrtc-address", "example.org"], "--webrtc-address: 'example.org' is not an IP address"),
    (["--mps", "on"], "--mps on: no stage uses a GPU"),
    (["--api-key-file", "/none"], "API keys: "),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=[" ".join(one[0]) for one in REFUSED])
def test_what_cannot_be_served_is_refused_by_a_dry_run(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    usual = ["serve", TINY, "--model", "m", "--port", "0", "--dry-run"]
    result = runner.invoke(cli.app, [*usual, *arguments])
    assert result.exit_code == 1
    assert f"error: {says}" in result.output or says in result.output


def test_a_dry_run_finds_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = runner.invoke(
            cli.app, ["serve", TINY, "--model", "m", "--port", port, "--dry-run"]
        )
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output


@pytest.mark.parametrize("command", ["check", "plan", "serve"])
def test_changes_are_the_same_for_every_command_that_reads_a_graph(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [command, TINY, *(["--model", "m", "--dry-run"] if command == "serve" else [])]
    result = runner.invoke(cli.app, [*asked, "--stage", "thinkr.gpus=[0]"])
    assert result.exit_code == 1
    assert "error: --stage thinkr.gpus=[0]: no stage 'thinkr'; did you mean" in result.output
    more = ["--stage", "talker.seed=4242", "--set", "edges.1.chunk.steady=77"]
    result = runner.invoke(cli.app, [*asked, *more, "--set-default", "talker.top_k=31"])
    assert result.exit_code == 0, result.output
    for said in ("seed: 4242", "default top_k: 31", "2 4 8 77"):
        assert said in result.output


def test_a_level_of_the_server_s_log_from_the_environment_is_one_that_stages_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from omnistage.server.telemetry.logs import LogLevel, log_environment

    monkeypatch.setenv("OMNISTAGE_LOG_LEVEL", "info")
    assert log_environment(LogLevel.INFO)["OMNISTAGE_LOG_LEVEL"] == "INFO"
