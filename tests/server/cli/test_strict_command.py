"""Flags that are not ours: the error names the nearest, or what does here what vLLM's does."""

from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.cli.vllm_flags import answers, instead_of, table
from omnistage.stage_configs.pick import GRAPHS

runner = CliRunner()
GROUP: Any = typer.main.get_command(cli.app)
TINY = str(GRAPHS / "qwen3_omni_tiny.yaml")
STAGE = "use --stage NAME"
WRONG = [
    (["--max-que", "3"], "there is no --max-que; did you mean '--max-queue'?"),
    (["--max_queue=3"], "there is no --max_queue; did you mean '--max-queue'?"),
    (["--tensor-parallel-size", "2"], f"{STAGE}.tensor_parallel_size=2"),
    (["--tensor_parallel_size=2"], f"{STAGE}.tensor_parallel_size=2"),
    (["-tp", "2"], f"{STAGE}.tensor_parallel_size=2"),
    (["--max-model-len", "8192"], f"{STAGE}.max_model_len=8192"),
    (["--enforce-eager"], f"{STAGE}.enforce_eager=true"),
    (["--no-enable-prefix-caching"], f"{STAGE}.enable_prefix_caching=false"),
    (["--compilation-config.mode", "3"], f"{STAGE}.compilation_config.mode=3"),
    (["--tool-call-parser", "hermes"], f"{STAGE}.options.tool_parser=PARSER"),
    (["--uds", "/tmp/x"], "not done: a proxy before the server"),
    (["--omni"], "there is no --omni here, as vLLM has it: not needed"),
    (["--stage-configs-path", "x"], "the graph file in place of the model"),
    (["--served-model-name", "a", "b"], "give it once for each name, so --served-model-name b"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(one[0]) for one in WRONG])
def test_a_wrong_flag_is_answered_with_the_right_one(arguments: list[str], says: str) -> None:
    result = runner.invoke(cli.app, ["serve", TINY, *arguments])
    assert result.exit_code == 2
    assert says in result.output


def test_check_and_plan_answer_in_the_same_way() -> None:
    for command in ("check", "plan"):
        result = runner.invoke(cli.app, [command, TINY, "--stages", "thinker.seed=1"])
        assert result.exit_code == 2
        assert "there is no --stages; did you mean '--stage'?" in result.output


def test_a_value_that_looks_like_a_flag_is_a_value() -> None:
    result = runner.invoke(cli.app, ["check", TINY, "--stage", "--max-queue"])
    assert result.exit_code == 1
    assert "--stage --max-queue: must be NAME.KEY=VALUE" in result.output


def test_what_is_answered_is_none_of_our_own_flags() -> None:
    ours = {name for option in GROUP.commands["serve"].params for name in option.opts}
    assert not ours & answers().keys()
    assert all(instead_of(flag) for flag in answers())
    rows = (*table()["vllm"], *table()["omni"])
    assert len(answers()) == sum(len(row["flags"]) for row in rows)
    assert instead_of("--none-of-theirs") == ""
