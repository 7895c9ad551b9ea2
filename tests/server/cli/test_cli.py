"""The command line, as a person calls it."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.repository.command_line import plain, runner

from omnistage.server import cli
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.vllm.family import TEXT_ONLY


def test_help_names_the_commands_and_imports_no_model_library() -> None:
    program = (
        "import sys\nfrom omnistage.server.cli import main\nsys.argv = ['omnistage', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('heavy:', sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    for command in ("check", "serve", "trace", "tiny", "bench", "demo"):
        assert command in done.stdout
    assert "heavy: []" in done.stdout


@pytest.mark.parametrize("path", sorted(GRAPHS.glob("*.yaml")), ids=lambda path: path.stem)
def test_check_prints_the_plan_of_a_shipped_graph(path: Path) -> None:
    result = runner.invoke(cli.app, ["check", str(path)])
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in yaml.safe_load(path.read_text())["stages"])


def test_check_names_the_mistake(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("stages:\n  text: {kind: vllm.text, gpu: [0]}\noutputs: {text: text}\n")
    result = runner.invoke(cli.app, ["check", str(path)])
    assert result.exit_code == 1
    assert "graph.yaml:2: stages.text.gpu: unknown key; did you mean 'gpus'?" in plain(
        result.output
    )


SPOKEN = """model: m
stages:
  thinker:
    kind: qwen3_omni.thinker
    engine:
      max_model_len: 512
      {argument}
  talker: {{kind: qwen3_omni.talker}}
  code2wav: {{kind: qwen3_omni.code2wav}}
edges:
  - {{from: thinker, to: talker}}
  - {{from: talker, to: code2wav}}
outputs: {{text: thinker, audio: code2wav}}
"""
CONNECTOR = "{kv_connector: LMCacheConnectorV1, kv_role: kv_both}"


@pytest.mark.parametrize(
    "command", [["check"], ["plan"], ["serve", "--port", "0", "--dry-run"], ["serve"]], ids=" ".join
)
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            f"kv_transfer_config: {CONNECTOR}",
            "kv_transfer_config: is set by this stage itself: vLLM has one KV connector",
        ),
        ("hf_overrides: {a: 1}", "hf_overrides: is set by this stage itself: it chooses"),
        ("served_model_name: mine", "served_model_name: is set by this stage itself: the"),
        ("enfore_eager: true", "enfore_eager: unknown key; did you mean 'enforce_eager'?"),
        ("xyzzy_qqq: 1", "xyzzy_qqq: unknown key; none of the "),
    ],
)
def test_an_engine_argument_without_effect_is_refused_by_file_line_and_name(
    argument: str, said: str, command: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(SPOKEN.format(argument=argument))
    result = runner.invoke(cli.app, [*command, str(path)])
    assert result.exit_code == 1
    assert f"graph.yaml:7: stages.thinker.engine.{said}" in plain(result.output)


def test_a_kv_connector_is_applied_where_no_edge_needs_the_engines_own(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    engine = f"{{kv_transfer_config: {CONNECTOR}}}"
    path.write_text(
        f"stages: {{text: {{kind: vllm.text, engine: {engine}}}}}\noutputs: {{text: text}}\n"
    )
    result = runner.invoke(cli.app, ["check", str(path)])
    assert result.exit_code == 0, result.output
    assert "LMCacheConnectorV1" in plain(result.output)


def test_check_of_a_model_in_place_of_a_file_names_the_command_for_models() -> None:
    result = runner.invoke(cli.app, ["check", "small"])
    wanted = "error: there is no graph file small; `omnistage plan MODEL` prints a model's graph"
    assert (result.exit_code, plain(result.output).strip()) == (1, wanted)


def test_a_pipeline_of_embeddings_is_refused_by_check_serve_and_a_dry_run(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "KandinskyPriorPipeline"}')
    path = tmp_path / "graph.yaml"
    graph = "stages: {dit: {kind: diffusers}}\noutputs: {image: dit}\n"
    path.write_text(f"{graph}model: {tmp_path}\n")
    for command in (
        ["check", str(path)],
        ["serve", str(tmp_path)],
        ["serve", str(tmp_path), "--dry-run"],
    ):
        result = runner.invoke(cli.app, command)
        assert result.exit_code == 1
        assert "KandinskyPriorPipeline returns image_embeds, " in plain(result.output)


def test_a_pipeline_of_audio_is_an_output_of_audio_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableAudioPipeline"}')
    path = tmp_path / "graph.yaml"
    for output, code in (("audio", 0), ("image", 1)):
        graph = f"stages: {{dit: {{kind: diffusers}}}}\noutputs: {{{output}: dit}}\n"
        path.write_text(f"{graph}model: {tmp_path}\n")
        result = runner.invoke(cli.app, ["check", str(path)])
        assert result.exit_code == code, result.output
    assert "outputs.image: the model of dit makes audio" in plain(result.output)


def test_a_gpu_that_is_not_there_is_said_and_never_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    path = tmp_path / "graph.yaml"
    stage = "{kind: vllm.text, gpus: [0, 3], engine: {tensor_parallel_size: 2}}"
    path.write_text(f"model: m\nstages:\n  text: {stage}\noutputs: {{text: text}}\n")
    sentence = "stage text wants GPU 3; this machine has 1"
    assert sentence in plain(runner.invoke(cli.app, ["check", str(path)]).output)
    result = runner.invoke(cli.app, ["serve", str(path)])
    assert result.exit_code == 1
    assert f"error: {sentence}: correct `gpus` of the stage, or take a" in plain(result.output)


def test_gpus_of_nodes_are_not_looked_for_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "graph.yaml"
    graph = "placement: ray\nstages: {text: {kind: vllm.text, gpus: 1}}\noutputs: {text: text}\n"
    path.write_text(f"model: m\n{graph}")
    for command in (["check"], ["plan"], ["serve", "--port", "0", "--dry-run"]):
        result = runner.invoke(cli.app, [*command, str(path)])
        assert result.exit_code == 0, result.output
        assert "wants GPU" not in plain(result.output)


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text("model: m\nstages: {text: {kind: vllm.text}}\noutputs: {text: text}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = runner.invoke(cli.app, ["serve", str(path), "--port", str(port)])
    assert result.exit_code == 1
    said = plain(result.output).splitlines()[-1]
    assert said.startswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert said.endswith(
        "; end what has the port, or take another with --port (0: any that is free)"
    )


def test_a_graph_without_a_model_is_not_served() -> None:
    result = runner.invoke(cli.app, ["serve", str(GRAPHS / "vllm_text.yaml")])
    assert result.exit_code == 1
    assert "give one with --model" in plain(result.output)


def test_a_folder_without_a_model_is_not_served(tmp_path: Path) -> None:
    result = runner.invoke(cli.app, ["serve", str(tmp_path)])
    assert result.exit_code == 1
    assert "has no config.json" in plain(result.output)


@pytest.mark.parametrize(
    ("model_type", "family"), [("qwen3_omni_moe", "qwen3_omni"), ("qwen2_5_omni", "qwen2_5_omni")]
)
@pytest.mark.parametrize(
    ("hidden_size", "num_gpus", "graph"),
    [
        (64, 0, "_tiny"),
        (64, 2, "_tiny"),
        (2048, 0, "_tiny"),
        (2048, 1, "_1gpu"),
        (2048, 2, ""),
    ],
)
def test_a_folder_picks_its_graph(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    family: str,
    hidden_size: int,
    num_gpus: int,
    graph: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus))))
    text = {"hidden_size": hidden_size}
    config = {"model_type": model_type, "thinker_config": {"text_config": text}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    resolved = cli.resolve(str(tmp_path), None)
    assert resolved.model == str(tmp_path)
    assert resolved == load_graph(GRAPHS / f"{family}{graph}.yaml", str(tmp_path))


def test_a_text_model_is_a_graph_of_one_stage(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    resolved = cli.resolve(str(tmp_path), None)
    assert [stage.kind for stage in resolved.stages.values()] == ["vllm.text"]


def test_a_model_whose_speech_no_graph_has_is_served_as_text_with_a_warning(tmp_path: Path) -> None:
    config = {"model_type": "another_omni", "talker_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    resolved = cli.resolve(str(tmp_path), None)
    assert list(resolved.outputs) == ["text"]
    assert resolved.note == TEXT_ONLY
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that nothing loads
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "omnistage.server.cli", "serve", str(tmp_path)]
        done = subprocess.run([*command, "--port", port], capture_output=True, text=True)
    assert done.returncode == 1
    said = f"WARNING {tmp_path} is served as {TEXT_ONLY}"
    assert said.replace(" ", "") in plain(done.stderr).replace(" ", "")  # its lines are folded


def test_a_load_format_goes_to_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[StageGraph] = []

    def serve(graph: StageGraph, *_: Any, **__: Any) -> int:
        served.append(graph)
        return 0

    monkeypatch.setattr("omnistage.server.serve.serve", serve)
    tiny = str(GRAPHS / "qwen3_omni_tiny.yaml")
    result = runner.invoke(cli.app, ["serve", tiny, "--model", "m", "--load-format", "dummy"])
    assert result.exit_code == 0, result.output
    stages = served[0].stages.values()
    assert [stage.engine["load_format"] for stage in stages] == ["dummy"] * 3
    assert served[0].stages["code2wav"].engine["num_slots"] == 8
