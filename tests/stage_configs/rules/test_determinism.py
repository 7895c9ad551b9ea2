"""What a deterministic graph gives its stages, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from omnistage.stage_configs.declared import graph as graphs
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.overrides import (
    Override,
    any_override,
    deterministic_override,
    stage_override,
)
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stage_configs.rules.determinism import (
    VLLM_SWITCHES,
    WORKSPACE,
    cpu_note,
    determinism_problem,
)

OMNI, TINY, PICTURES = (
    GRAPHS / f"{name}.yaml" for name in ("qwen3_omni_1gpu", "qwen3_omni_tiny", "diffusers")
)


def determined(path: Path, *texts: str) -> Any:
    stages = [stage_override(text) for text in texts]
    return load_graph(path, "m", [*stages, deterministic_override()])


def test_engines_on_a_gpu_are_told_and_all_else_merges_no_requests() -> None:
    stages = determined(OMNI).stages
    plain = load_graph(OMNI, "m").stages
    for name in ("thinker", "talker"):
        assert stages[name].environment == VLLM_SWITCHES
        assert stages[name].engine == plain[name].engine
    assert stages["code2wav"].environment == WORKSPACE
    assert stages["code2wav"].engine == {**plain["code2wav"].engine, "max_batch": 1}
    assert determined(PICTURES).stages["dit"].engine["max_batch"] == 1


def test_a_graph_that_is_not_deterministic_is_left_as_it_is() -> None:
    for stage in load_graph(OMNI, "m").stages.values():
        assert "max_batch" not in stage.engine
        assert not stage.environment


def test_a_file_says_it_by_a_key_and_its_stages_read_it_again() -> None:
    graph = load_graph(OMNI, "m", [any_override("deterministic=true")])
    assert graph == determined(OMNI)
    assert type(graph).model_validate_json(graph.model_dump_json(by_alias=True)) == graph


def test_vllm_is_told_nothing_on_a_cpu_where_it_has_no_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "used_gpus", lambda gpus: gpus)
    tiny = determined(TINY)
    assert not any(
        name in tiny.stages["thinker"].environment for name in ("VLLM_BATCH_INVARIANT", *WORKSPACE)
    )
    assert tiny.undetermined == ["thinker", "talker"]
    assert "stage thinker computes on a CPU" in cpu_note("thinker")
    assert not determined(OMNI).undetermined
    assert not load_graph(TINY, "m").undetermined
    monkeypatch.setattr(graphs, "used_gpus", lambda gpus: (0,))
    assert determined(TINY).stages["thinker"].environment.items() >= VLLM_SWITCHES.items()


@pytest.mark.parametrize("gpus_here", [(), (0,)])
def test_on_a_cluster_s_nodes_only_stages_with_gpus_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus_here: tuple[int, ...]
) -> None:
    """Whatever GPUs the gateway's machine has: a stage without `gpus` sees none on its node."""
    monkeypatch.setattr(graphs, "used_gpus", lambda gpus: gpus or gpus_here)
    path = tmp_path / "graph.yaml"
    text = "model: m\nplacement: ray\nstages: {text: {kind: vllm.text%s}}\noutputs: {text: text}\n"
    path.write_text(text % "")
    without = determined(path)
    assert without.stages["text"].environment == {}
    assert without.undetermined == ["text"]
    path.write_text(text % ", gpus: 0.5")
    with_gpu = determined(path)
    assert with_gpu.stages["text"].environment == VLLM_SWITCHES
    assert not with_gpu.undetermined


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thinker.quantization=fp8", "its kernels may scale a row by the largest value of all"),
        ("thinker.speculative_config={method: ngram}", "how many drafts a step takes depends on"),
        ("talker.enable_lora=true", "products of adapters are summed in blocks"),
        ("thinker.enable_expert_parallel=true", "experts on several GPUs"),
        ("talker.compilation_config.compile_sizes=[1, 2]", "code compiled for one size of a step"),
        ("thinker.attention_backend=FLASHINFER", "takes FLASH_ATTN, FLEX_ATTENTION, TRITON_ATTN"),
        ("thinker.attention_config.backend=flashinfer", "a deterministic stage takes FLASH_ATTN"),
        ("talker.environment.VLLM_BATCH_INVARIANT=0", "must be 1 in a deterministic stage, not 0"),
        ("talker.environment.VLLM_USE_V2_MODEL_RUNNER=1", "must be 0 in a deterministic stage"),
        ("code2wav.max_batch=8", "must be 1: a deterministic stage merges no requests"),
    ],
)
def test_what_depends_on_other_requests_is_refused_by_its_name(text: str, message: str) -> None:
    load_graph(OMNI, "m", [stage_override(text)])
    with pytest.raises(GraphError) as caught:
        determined(OMNI, text)
    assert str(caught.value).startswith(f"--stage {text}: ")
    assert message in str(caught.value)


def test_what_only_some_versions_of_vllm_know_is_refused_as_well() -> None:
    kind = KINDS["qwen3_omni.thinker"]
    assert determinism_problem(kind, {"calculate_kv_scales": False}, {}) is None
    message, place = determinism_problem(kind, {"calculate_kv_scales": True}, {}) or ("", ())
    assert "the scales would be those of the requests that came first" in message
    assert place == ("engine", "calculate_kv_scales")


@pytest.mark.parametrize(
    "text",
    [
        "thinker.quantization=",
        "thinker.enable_lora=false",
        "thinker.attention_backend=triton_attn",
        "thinker.attention_config.flash_attn_version=3",
        "thinker.compilation_config=3",
        "thinker.environment.VLLM_BATCH_INVARIANT=1",
        "code2wav.max_batch=1",
    ],
)
def test_what_depends_on_no_other_request_is_taken(text: str) -> None:
    assert determined(OMNI, text).deterministic


def test_a_kind_that_cannot_compute_one_request_at_a_time_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = KINDS["qwen3_omni.code2wav"]
    arguments = known.arguments - {"max_batch"}
    without = type(known)(
        known.path, known.outputs, takes=known.takes, is_entry=False, arguments=arguments
    )
    monkeypatch.setitem(KINDS, "qwen3_omni.code2wav", without)
    merging = Override("--set x", ("stages", "code2wav", "engine"), {})
    with pytest.raises(GraphError, match="a stage of this kind has no max_batch"):
        load_graph(OMNI, "m", [merging, deterministic_override()])
