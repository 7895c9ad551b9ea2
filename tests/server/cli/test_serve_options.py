"""Options of `omnistage serve` and of the page, as a person gives them."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers
from support.repository.command_line import plain, runner

from omnistage.server import cli
from omnistage.server.options.bounds import SessionBounds
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.placement.placing import placing_of
from omnistage.server.runtime.processes.process import StageProcess
from omnistage.server.telemetry.logs import log_environment
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stage_configs.rules.mps import SHARE


def test_offload_goes_to_the_diffusion_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[StageGraph] = []

    def serve(graph: StageGraph, *_: Any, **__: Any) -> int:
        served.append(graph)
        return 0

    monkeypatch.setattr("omnistage.server.serve.serve", serve)
    asked = ["--model", "m", "--offload", "sequential"]
    result = runner.invoke(cli.app, ["serve", str(GRAPHS / "diffusers.yaml"), *asked])
    assert result.exit_code == 0, result.output
    assert served[0].stages["dit"].engine["offload"] == "sequential"
    result = runner.invoke(cli.app, ["serve", str(GRAPHS / "qwen3_omni_tiny.yaml"), *asked])
    assert result.exit_code == 1
    assert "--offload: there is no stage of kind diffusers" in result.output


class Started:
    """Tells what a server would be started with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
        monkeypatch.setattr("omnistage.server.serve.serve", self._serve)
        target = str(GRAPHS / "vllm_text.yaml")
        result = runner.invoke(cli.app, ["serve", target, "--model", "m", *arguments])
        assert result.exit_code == 0, result.output

    def _serve(
        self,
        graph: StageGraph,
        host: str,
        port: int,
        options: GatewayOptions,
        page_at: None,
    ) -> int:
        self.graph, self.options = graph, options
        return 0

    def environment(self) -> dict[str, str]:
        """Of a stage's process."""
        environment = log_environment(self.options.log_level)
        stage = placing_of(self.graph, Path(), environment).launch("text", Path())
        assert isinstance(stage, StageProcess)
        return stage._environment


def served_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> GatewayOptions:
    """The options that a server would be started with."""
    return Started(monkeypatch, *arguments).options


def test_a_server_is_told_its_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    keys = tmp_path / "keys"
    keys.write_text("sk-file\n")
    options = served_with(
        monkeypatch,
        *("--max-queue", "7", "--requests-per-minute", "60", "--request-timeout", "2.5"),
        *("--allowed-media-path", str(tmp_path), "--allowed-media-domains", "a.example"),
        *("--allowed-media-domains", ".b.example", "--api-key", "sk-flag"),
        *("--api-key-file", str(keys), "--client-buffer-mb", "3", "--max-sessions", "5"),
        *("--sessions-per-key", "2", "--session-timeout", "90", "--session-idle-timeout", "1.5"),
        *("--session-memory-mb", "9", "--answer-ahead", "3"),
        *("--history-ahead", "4"),
    )
    assert options.max_requests == 7
    assert options.sessions == SessionBounds(5, 2, 90, 1.5, 9 << 20, 3, 4)
    assert options.requests_per_minute == 60
    assert options.timeout_s == 2.5
    assert options.media_path == tmp_path
    assert options.media_domains == ("a.example", ".b.example")
    assert options.max_unsent_bytes == 3 << 20
    for key in ("sk-flag", "sk-file"):
        assert options.keys.owner(Headers({"authorization": f"Bearer {key}"}))


def test_of_requests_nothing_is_exported_unless_a_collector_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    plain_one = Started(monkeypatch)
    assert plain_one.options.traces_url is None
    assert "otlp_traces_endpoint" not in plain_one.graph.stages["text"].engine
    traced = Started(monkeypatch, "--otlp-endpoint", "http://collector:4318")
    assert traced.options.traces_url == "http://collector:4318/v1/traces"
    engine = traced.graph.stages["text"].engine
    assert engine["otlp_traces_endpoint"] == traced.options.traces_url
    same = Started(monkeypatch, "--otlp-traces-endpoint", "http://collector:4318/v1/traces")
    assert same.options.traces_url == traced.options.traces_url


def test_a_collector_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    asked = ["serve", str(GRAPHS / "vllm_text.yaml"), "--model", "m", "--otlp-endpoint"]
    result = runner.invoke(cli.app, [*asked, "collector:4318"])
    assert result.exit_code == 1
    assert "no http(s) address" in plain(result.output)
    command = sys.modules["omnistage.server.cli.serving.machine"]
    monkeypatch.setattr(command, "OTLP_EXPORTER", "opentelemetry.of_nobody.http")
    result = runner.invoke(cli.app, [*asked, "http://collector:4318"])
    assert result.exit_code == 1
    assert "omnistage[otel]" in plain(result.output)


def test_a_folder_of_profiles_that_cannot_be_written_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "file").touch()
    below, shut = tmp_path / "file" / "traces", tmp_path / "shut"
    access = os.access  # root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, *mode: path != shut and access(path, *mode))
    asked = ["serve", str(GRAPHS / "vllm_text.yaml"), "--model", "m", "--profile-folder"]
    for folder, why in ((below, "Not a directory"), (shut, "nothing can be written there")):
        result = runner.invoke(cli.app, [*asked, str(folder)])
        assert result.exit_code == 1
        assert f"--profile-folder {folder}: {why}" in plain(result.output)


def test_a_folder_of_profiles_is_made_where_stages_run_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    folder = tmp_path / "a" / "b"
    started = Started(monkeypatch, "--profile-folder", str(folder))
    assert folder.is_dir()
    engine = started.graph.stages["text"].engine
    assert engine["profiler_config"]["torch_profiler_dir"] == str(folder / "text")


def test_the_log_is_of_the_form_and_level_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    usual = Started(monkeypatch)
    assert (usual.options.log_format, usual.options.log_level) == ("text", "info")
    assert not {"OMNISTAGE_LOG_LEVEL", "VLLM_LOGGING_LEVEL"} & usual.environment().keys()
    asked = Started(monkeypatch, "--log-format", "json", "--log-level", "warning")
    assert (asked.options.log_format, asked.options.log_level) == ("json", "warning")
    environment = asked.environment()
    assert environment["OMNISTAGE_LOG_LEVEL"] == environment["VLLM_LOGGING_LEVEL"] == "WARNING"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    assert (
        Started(monkeypatch, "--log-level", "debug").environment()["VLLM_LOGGING_LEVEL"] == "ERROR"
    )


def test_mps_is_auto_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert served_with(monkeypatch).mps == "auto"
    assert served_with(monkeypatch, "--mps", "off").mps == "off"
    assert served_with(monkeypatch, "--mps", "on").mps == "on"


def test_mps_that_cannot_be_had_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    target = [str(GRAPHS / "vllm_text.yaml"), "--model", "m", "--port", "0"]
    result = runner.invoke(cli.app, ["serve", *target, "--mps", "on"])
    assert result.exit_code == 1
    sentence = "error: --mps on: nvidia-cuda-mps-control is not on the PATH"
    assert sentence in plain(result.output)


def test_a_share_is_refused_for_a_stage_that_names_no_gpu_and_uses_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SHARE, "60")
    target = ["serve", str(GRAPHS / "vllm_text.yaml"), "--model", "m", "--port", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = runner.invoke(cli.app, target)
    assert result.exit_code == 1
    assert f"{SHARE} is 60" in plain(result.output)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    served: list[StageGraph] = []
    monkeypatch.setattr(
        "omnistage.server.serve.serve", lambda graph, *_, **__: served.append(graph)
    )
    runner.invoke(cli.app, target)
    assert len(served) == 1


def test_keys_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("OMNISTAGE_API_KEY", "sk-a sk-b")
    keys = served_with(monkeypatch).keys
    for key in ("sk-a", "sk-b"):
        assert keys.owner(Headers({"authorization": f"Bearer {key}"}))


def test_a_key_file_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    target = str(GRAPHS / "vllm_text.yaml")
    arguments = ["serve", target, "--model", "m", "--api-key-file", "/none"]
    result = runner.invoke(cli.app, arguments)
    assert result.exit_code == 1
    assert "API keys" in plain(result.output)


@pytest.mark.parametrize("name", ["gradio", "openai"])
def test_a_missing_extra_of_the_page_is_told_with_its_name(name: str) -> None:
    program = (
        f"import sys\nsys.modules['{name}'] = None\n"
        "from omnistage.server.cli import main\n"
        "sys.argv = ['omnistage', 'demo', '--port', '0']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'omnistage[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told_before_the_page_is_built() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        program = (
            "import atexit, sys\nfrom omnistage.server.cli import main\n"
            "atexit.register(lambda: print('gradio' in sys.modules))\n"
            f"sys.argv = ['omnistage', 'demo', '--port', '{port}']\nmain()\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: " in plain(done.stderr)
    assert done.stdout.endswith("False\n")


def test_commands_keep_onnxruntime_from_reporting() -> None:
    """`tiny`, `verify` and `bench` import Diffusers, which imports it."""
    code = (
        "import os, sys\n"
        "from omnistage.server.cli import main\n"
        "sys.argv = ['omnistage', '--version']\n"
        "try:\n    main()\n"
        "finally:\n    print(os.environ['ORT_DISABLE_TELEMETRY'])\n"
    )
    name = "ORT_DISABLE_TELEMETRY"
    environment = {one: value for one, value in os.environ.items() if one != name}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["1"], done.stderr
