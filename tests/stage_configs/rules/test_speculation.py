"""Which stages may draft tokens, before anything loads."""

from pathlib import Path

import pytest

from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import GraphError, load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stage_configs.rules.speculation import speculation_problem

DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


@pytest.mark.parametrize("name", ["qwen3_omni.thinker", "qwen2_5_omni.thinker", "vllm.text"])
def test_stages_that_answer_in_text_may_draft(name: str) -> None:
    assert speculation_problem(KINDS[name], DRAFTS) is None


@pytest.mark.parametrize("name", ["qwen3_omni.talker", "qwen2_5_omni.talker", "qwen3_tts.talker"])
def test_talkers_may_not(name: str) -> None:
    found = speculation_problem(KINDS[name], DRAFTS)
    assert found is not None
    message, place = found
    assert message.startswith("not in a stage of this kind: each of its steps takes an input")
    assert place == ("engine", "speculative_config")
    assert speculation_problem(KINDS[name], {"speculative_config": None}) is None
    for part in ("spec_method", "spec_model", "spec_tokens"):
        found = speculation_problem(KINDS[name], {part: 3})
        assert found is not None
        assert found[1] == ("engine", part)


def test_a_graph_whose_talker_drafts_is_refused_at_the_stage(tmp_path: Path) -> None:
    text = (GRAPHS / "qwen3_omni_tiny.yaml").read_text()
    thinker, talker, rest = text.split("    engine:\n", 2)
    drafts = "    engine:\n      speculative_config: {method: ngram, num_speculative_tokens: 3}\n"
    file = tmp_path / "graph.yaml"
    file.write_text(thinker + drafts + talker + "    engine:\n" + rest)
    assert load_graph(file, "tiny").stages["thinker"].engine["speculative_config"]
    file.write_text(thinker + "    engine:\n" + talker + drafts + rest)
    with pytest.raises(GraphError, match=r"stages\.talker\.engine\.speculative_config: not in"):
        load_graph(file, "tiny")
