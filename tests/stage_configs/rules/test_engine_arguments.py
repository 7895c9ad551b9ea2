"""The names of engine arguments that the gateway knows are those that the stages take."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.rules import engine_arguments
from omnistage.stage_configs.rules.engine_arguments import is_switch, value_problem, vllm_arguments


def test_a_diffusion_stage_takes_those_that_are_known() -> None:
    from omnistage.stages.diffusion.assembly import OPTIONS

    assert engine_arguments.engine_arguments("diffusers") == OPTIONS


def test_code2wav_takes_those_that_are_known() -> None:
    from omnistage.stages.vocoder.start import DecoderOptions

    taken = {field.name for field in fields(DecoderOptions)}
    assert engine_arguments.engine_arguments("qwen3_omni.code2wav") == taken


def test_those_of_vllm_are_read_without_importing_it() -> None:
    program = (
        "import sys\n"
        "from omnistage.stage_configs.rules.engine_arguments import engine_arguments\n"
        "print('max_model_len' in engine_arguments('vllm.text'), 'vllm' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]


def test_switches_are_told_from_what_has_a_value() -> None:
    assert is_switch("enforce_eager")
    assert not is_switch("max_model_len")
    assert not is_switch("none of vLLM's")


@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [
        ("max_model_len", "lots", "must be an integer, not 'lots'"),
        ("max_model_len", 1.5, "must be an integer, not 1.5"),
        ("max_num_seqs", [4], "must be an integer, not [4]"),
        ("gpu_memory_utilization", "most", "must be a number, not 'most'"),
        ("enforce_eager", "perhaps", "must be true or false, not 'perhaps'"),
        ("enable_prefix_caching", 2, "must be true or false, not 2"),
        ("max_model_len", 4096, None),
        ("max_model_len", "4096", None),  # as vLLM reads it
        ("max_num_seqs", None, None),
        ("gpu_memory_utilization", 1, None),
        ("enforce_eager", 1, None),
        ("dtype", "none of vLLM's", None),  # not looked at
        ("hf_overrides", {"a": 1}, None),
        ("none of vLLM's", "x", None),
    ],
)
def test_numbers_and_switches_are_compared_with_what_vllm_reads(
    argument: str, value: object, problem: str | None
) -> None:
    assert value_problem(argument, value) == problem


def test_a_value_of_another_type_is_named_with_its_line(tmp_path: Path) -> None:
    text = "model: m\nstages:\n  text:\n    kind: vllm.text\n    engine: {max_model_len: lots}\n"
    file = tmp_path / "graph.yaml"
    file.write_text(text + "outputs: {text: text}\n")
    where = "graph.yaml:5: stages.text.engine.max_model_len: must be an integer"
    with pytest.raises(GraphError, match=where):
        load_graph(file)


def test_without_vllm_none_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_arguments._vllm_types.cache_clear()
    monkeypatch.setattr(engine_arguments, "find_spec", lambda name: None)
    assert vllm_arguments() == frozenset()
    engine_arguments._vllm_types.cache_clear()
