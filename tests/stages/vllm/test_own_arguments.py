"""Every engine argument that a stage sets: what a graph file gives it is applied, or is refused.

Stages are made as they are for a server, and start as far as vLLM's configuration.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnistage.connectors import make_connector
from omnistage.server.runtime.processes.channels import Channels
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stages.checkpoint.tiny_embedding import write_tiny_embedding
from omnistage.stages.qwen3_tts.checkpoint.writers import write_custom_voice
from omnistage.stages.vllm.engine import engine
from omnistage.stages.vllm.workers.worker_extension import extended_by
from omnistage.stages.worker.stage_worker import StageWorker

OMNI = """
stages:
  thinker: {{kind: {family}.thinker}}
  talker: {{kind: {family}.talker}}
  last: {{kind: {family}.{last}}}
edges: [{{from: thinker, to: talker}}, {{from: talker, to: last}}]
outputs: {{text: thinker, audio: last}}
"""
QWEN3 = OMNI.format(family="qwen3_omni", last="code2wav")
QWEN2_5 = OMNI.format(family="qwen2_5_omni", last="token2wav")
TEXT_ALONE = "stages: {thinker: {kind: qwen3_omni.thinker}}\noutputs: {text: thinker}\n"
# Of each stage: a graph and its checkpoint.
STAGES = {
    "qwen3_omni.thinker": ("thinker", QWEN3, "tiny_checkpoint"),
    "qwen3_omni.thinker alone": ("thinker", TEXT_ALONE, "tiny_checkpoint"),
    "qwen3_omni.talker": ("talker", QWEN3, "tiny_checkpoint"),
    "qwen2_5_omni.thinker": ("thinker", QWEN2_5, "tiny_qwen2_5_omni"),
    "qwen2_5_omni.talker": ("talker", QWEN2_5, "tiny_qwen2_5_omni"),
    "qwen3_tts.talker": (
        "talker",
        "stages: {talker: {kind: qwen3_tts.talker}, last: {kind: qwen3_tts.code2wav}}\n"
        "edges: [{from: talker, to: last}]\noutputs: {audio: last}\n",
        "tiny_tts",
    ),
    "qwen_image.text_encoder": (
        "encoder",
        "stages: {encoder: {kind: qwen_image.text_encoder}, last: {kind: diffusers}}\n"
        "edges: [{from: encoder, to: last}]\noutputs: {image: last}\n",
        "tiny_qwen_image",
    ),
    "vllm.text": (
        "text",
        "stages: {text: {kind: vllm.text}}\noutputs: {text: text}\n",
        "tiny_text",
    ),
    "vllm.embedding": (
        "vectors",
        "stages: {vectors: {kind: vllm.embedding}}\noutputs: {embedding: vectors}\n",
        "tiny_embedding",
    ),
}
ALONE = ("qwen3_omni.thinker alone", "vllm.text", "vllm.embedding")  # without a bridge
METHODS = "support.stages.worker_methods.Methods"
# A value that no stage sets by itself, for each argument that some stage sets.
WRITTEN: Mapping[str, Any] = {
    "dtype": "bfloat16",
    "enable_prefix_caching": True,
    "generation_config": "vllm",
    "hf_overrides": {"rope_theta": 1.0},
    "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
    "load_format": "safetensors",
    "max_model_len": 1500,
    "model": "other",
    "runner": "generate",
    "scheduler_cls": "mine.Scheduler",
    "skip_tokenizer_init": False,
    "stream_interval": 7,
    "structured_outputs_config": {"backend": "xgrammar"},
    "worker_cls": "mine.Worker",
    "worker_extension_cls": METHODS,
}
# Of an argument that is given to vLLM in another form: what is asked for in it.
SEEN: Mapping[str, Callable[[Any], Any]] = {
    "structured_outputs_config": lambda config: {"backend": config.backend},
    "worker_extension_cls": lambda name: METHODS if name == extended_by(METHODS) else name,
}


class Configured(Exception):
    """An engine's arguments are whole."""


@contextmanager
def worker_of(graph: StageGraph, name: str, folder: Path) -> Iterator[StageWorker]:
    channels = Channels(graph, folder, make_connector)
    channels.create()
    worker = StageWorker(graph, name, folder)
    try:
        yield worker
    finally:
        worker._wiring.close()
        worker._reports.close()
        channels.destroy()


@pytest.fixture(scope="module")
def tiny_embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "embedding"
    write_tiny_embedding(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_tts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "tts"
    write_custom_voice(folder)
    return folder


async def arguments_of(
    graph: StageGraph, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What vLLM's configuration of a stage is made with."""
    seen: dict[str, Any] = {}

    def made(**arguments: Any) -> Any:
        seen.update(arguments)
        raise Configured

    made.__dataclass_fields__ = engine.EngineArguments.__dataclass_fields__  # type: ignore[attr-defined]
    monkeypatch.setattr(engine, "EngineArguments", made)
    with worker_of(graph, name, folder) as worker, pytest.raises(Configured):
        await worker._stage.start()
    return seen


def graph_of(
    stage: str, model: Path, folder: Path, arguments: Mapping[str, Any]
) -> tuple[StageGraph, str]:
    """The graph of a stage whose engine has these arguments, and the stage's name; GraphError."""
    name, text, _ = STAGES[stage]
    graph = yaml.safe_load(text)
    graph["stages"][name]["engine"] = dict(arguments)
    file = folder / "graph.yaml"
    file.write_text(yaml.safe_dump(graph, sort_keys=False))
    return load_graph(file, str(model)), name


def refusal(stage: str, model: Path, folder: Path, arguments: Mapping[str, Any]) -> str:
    try:
        graph_of(stage, model, folder, arguments)
    except GraphError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("stage", STAGES)
async def test_what_a_graph_file_says_of_an_argument_that_a_stage_sets_is_applied_or_refused(
    stage: str,
    tmp_path: Path,
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    model: Path = request.getfixturevalue(STAGES[stage][2])
    graph, name = graph_of(stage, model, tmp_path, {})
    own = await arguments_of(graph, name, run_directory, monkeypatch)
    assert own.keys() <= WRITTEN.keys()  # one that is new needs a value here
    refused = {one for one in WRITTEN if refusal(stage, model, tmp_path, {one: WRITTEN[one]})}
    for one in refused:
        place = rf"graph\.yaml:\d+: stages\.{name}\.engine\.{one}: is set by this stage itself"
        assert re.search(place, refusal(stage, model, tmp_path, {one: WRITTEN[one]}))
    written = {one: value for one, value in WRITTEN.items() if one not in refused}
    graph, name = graph_of(stage, model, tmp_path, written)
    seen = await arguments_of(graph, name, run_directory, monkeypatch)
    applied = {one: SEEN.get(one, lambda value: value)(seen[one]) for one in written}
    assert applied == written
    assert ("kv_transfer_config" in refused) == (stage not in ALONE)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_stage_refuses_them_itself_where_its_kind_does_not_name_them(
    stage: str,
    tmp_path: Path,
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """As one of another package's may do that builds on ours."""
    model: Path = request.getfixturevalue(STAGES[stage][2])
    graph, name = graph_of(stage, model, tmp_path, {})
    refused = {one for one in WRITTEN if refusal(stage, model, tmp_path, {one: WRITTEN[one]})}
    for one in refused:
        spec = graph.stages[name]
        stages = {**graph.stages, name: spec.model_copy(update={"engine": {one: WRITTEN[one]}})}
        unchecked = graph.model_copy(update={"stages": stages})
        message = f"^{one} is set by this stage itself"
        with (
            worker_of(unchecked, name, run_directory) as worker,
            pytest.raises(ValueError, match=message),
        ):
            await worker._stage.start()
