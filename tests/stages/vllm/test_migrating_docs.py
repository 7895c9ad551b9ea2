"""The flags in docs/migrating.md are vLLM's and ours, and engine arguments are vLLM's."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from omnistage.server.cli import app
from omnistage.stages.vllm.compat import OnlineRenderer, OpenAIServingChat
from omnistage.stages.vllm.engine_stage import LORA_MODULES

TEXT = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
FROM_VLLM = TEXT[TEXT.index("## From vLLM") : TEXT.index("## From vllm-omni")]
ROWS = re.findall(r"^\| (`--.*?) \| (.*) \|$", FROM_VLLM, re.MULTILINE)
GROUP: Any = typer.main.get_command(app)
OURS = {name for option in GROUP.commands["serve"].params for name in option.opts}
ENGINE = {field.name for field in dataclasses.fields(AsyncEngineArgs)}


def options() -> set[str]:
    """The keys of `options:` that the page shows."""
    shown = re.findall(r"options: \{(.*?)\}", FROM_VLLM)
    named = re.findall(r"and `(default_\w+)`", FROM_VLLM)
    return {part.split(":")[0].strip() for found in shown for part in found.split(",")} | set(named)


@pytest.mark.parametrize("option", sorted(options()))
def test_an_option_of_a_stage_is_one_that_vllm_s_chat_takes_or_our_own(option: str) -> None:
    """Others would be left out without a word."""
    taken = inspect.signature(OpenAIServingChat).parameters
    rendered = inspect.signature(OnlineRenderer).parameters
    assert option in taken.keys() | rendered.keys() | {LORA_MODULES}


def test_the_options_are_found() -> None:
    assert {"tool_parser", "reasoning_parser", "chat_template"} <= options()


def flags(text: str) -> list[str]:
    return re.findall(r"--[a-z-]+", text)


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("flag", [flag for row in ROWS for flag in flags(row[0])])
def test_a_flag_on_the_left_is_one_of_vllm_s(flag: str) -> None:
    names = ENGINE | {field.name for field in dataclasses.fields(FrontendArgs)}
    assert flag.removeprefix("--").replace("-", "_") in names


@pytest.mark.parametrize("flag", [flag for row in ROWS for flag in flags(row[1])])
def test_a_flag_on_the_right_is_one_of_ours(flag: str) -> None:
    assert flag in OURS


@pytest.mark.parametrize("row", [row for row in ROWS if row[1].startswith("`engine:`")], ids=str)
def test_what_goes_to_the_engine_is_an_argument_of_it(row: tuple[str, str]) -> None:
    for flag in flags(row[0]):
        assert flag.removeprefix("--").replace("-", "_") in ENGINE
