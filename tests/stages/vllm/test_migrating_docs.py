"""The flags in docs/migrating.md are vLLM's, all of them, and ours; engine arguments are vLLM's."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from omnistage.server.cli import app
from omnistage.server.cli.vllm_flags import Row, answers, instead_of, table
from omnistage.stage_configs.declared.stage import ROLES
from omnistage.stage_configs.rules.engine_arguments import OURS as GRAPH_S
from omnistage.stage_configs.rules.engine_arguments import vllm_arguments
from omnistage.stages.vllm.compat import OnlineRenderer, OpenAIServingChat
from omnistage.stages.vllm.engine_stage import LORA_MODULES

if vllm.__version_tuple__[:2] != (0, 32):
    pytest.skip("the tables are of vLLM 0.32's flags", allow_module_level=True)

from vllm.entrypoints.launchers.cli_args import make_arg_parser

TEXT = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
FROM_VLLM, FROM_OMNI = TEXT[TEXT.index("## From vLLM") :].split("## From vllm-omni")
LEFT_FIRST = re.findall(r"^\| (`--.*?) \| (.*) \|$", FROM_VLLM, re.MULTILINE)
OF_ENGINE = re.findall(r"^\| \w+ \| (`--.*) \|$", FROM_VLLM, re.MULTILINE)
GROUP: Any = typer.main.get_command(app)
OURS = {name for option in GROUP.commands["serve"].params for name in option.opts}
VLLM, OMNI, SHORT = table()["vllm"], table()["omni"], table()["short"]
ENGINE = {field.name for field in dataclasses.fields(AsyncEngineArgs)}


def flags(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z0-9-]+", text)


def underscored(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@pytest.fixture(scope="module")
def vllm_flags() -> dict[str, str]:
    """Every name of a flag of `vllm serve`, with the one that comes first of its long ones."""
    parser = make_arg_parser(FlexibleArgumentParser())
    long = {
        name: next(one for one in action.option_strings if one.startswith("--"))
        for action in parser._actions
        for name in action.option_strings
    }
    return {name: first for name, first in long.items() if first != "--help"}


def test_every_flag_of_vllm_s_parser_is_on_the_left_once_and_no_other(
    vllm_flags: dict[str, str],
) -> None:
    left = [flag for row, _ in LEFT_FIRST for flag in flags(row)]
    left += [flag for row in OF_ENGINE for flag in flags(row)]
    assert len(left) == len(set(left))
    assert set(left) == set(vllm_flags.values())


def test_every_flag_of_vllm_is_ours_or_answered_with_what_to_use_instead(
    vllm_flags: dict[str, str],
) -> None:
    unanswered = [name for name in vllm_flags if name.startswith("--") and not instead_of(name)]
    assert set(unanswered) <= OURS | {"--model"}
    assert not [name for name in SHORT if name not in vllm_flags]


def test_what_is_in_the_table_of_the_engine_is_an_argument_of_it() -> None:
    shown = [flag for row in OF_ENGINE for flag in flags(row)]
    assert len(shown) > 200
    assert {underscored(flag) for flag in shown} <= ENGINE
    assert set(SHORT.values()) <= ENGINE


def test_the_arguments_that_are_read_from_vllm_s_source_are_all_of_them() -> None:
    assert vllm_arguments() == ENGINE - GRAPH_S


@pytest.mark.parametrize(
    ("rows", "page"), [(VLLM, FROM_VLLM), (OMNI, FROM_OMNI)], ids=["vLLM", "vllm-omni"]
)
def test_the_page_says_what_whoever_types_a_flag_is_told(rows: list[Row], page: str) -> None:
    for row in rows:
        shown, answer = ", ".join(f"`{flag}`" for flag in row["flags"]), row["instead"]
        assert f"| {shown} | {answer} |" in page
        assert all(instead_of(flag) == answer.replace("`", "") for flag in row["flags"])


def test_a_flag_on_the_right_is_one_of_ours() -> None:
    right = [*(answer for _, answer in LEFT_FIRST), *answers().values()]
    named = {flag for answer in right for flag in flags(answer)}
    assert len(named) > 15
    assert named <= OURS


def test_a_flag_that_both_have_is_not_refused() -> None:
    same = [flag for row, _ in LEFT_FIRST for flag in flags(row) if flag not in answers()]
    assert {"--host", "--served-model-name", "--ssl-certfile", "--allowed-origins"} <= set(same)
    assert set(same) <= OURS


def options() -> set[str]:
    """The keys of `options` that the page shows: by themselves, in a graph file, as flags."""
    named = set(re.findall(r"options\.([a-z_]+)=", FROM_VLLM))
    shown = re.findall(r"options: \{(.*?)\}", FROM_VLLM)
    named |= {part.split(":")[0].strip() for found in shown for part in found.split(",")}
    (as_flags,) = (row["flags"] for row in VLLM if "options.KEY" in row["instead"])
    return named | {underscored(flag) for flag in as_flags}


@pytest.mark.parametrize("option", sorted(options()))
def test_an_option_of_a_stage_is_one_that_vllm_s_chat_takes_or_our_own(option: str) -> None:
    """Others would be left out without a word."""
    taken = inspect.signature(OpenAIServingChat).parameters
    rendered = inspect.signature(OnlineRenderer).parameters
    assert option in taken.keys() | rendered.keys() | {LORA_MODULES, ROLES}


def test_the_options_are_found() -> None:
    assert {"tool_parser", "reasoning_parser", "chat_template"} <= options()
