"""docs/integrations.md: its commands and files are taken by what reads them here.

The programs themselves are run by `make open-webui` and `make integrations`.
"""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from omnistage.server import cli
from omnistage.stage_configs.overrides import alias_override

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
GROUP = typer.main.get_command(cli.app)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_options_of_serve_exist() -> None:
    (command,) = blocks("console")
    _, name, *words = shlex.split(command)
    flags = {flag for option in GROUP.commands[name].params for flag in option.opts}  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("--")} <= flags
    aliases = [words[i + 1] for i, word in enumerate(words) if word == "--voice-alias"]
    assert [alias_override(alias).place[1] for alias in aliases] == ["alloy", "nova"]


def test_open_webui_gets_every_address_and_key() -> None:
    """Its addresses of audio and images do not follow that of chats."""
    (command,) = blocks("sh")
    given = dict(re.findall(r"-e (\w+)=(\S+)", command))
    for part in ("", "AUDIO_TTS_", "AUDIO_STT_"):
        assert given[f"{part}OPENAI_API_BASE_URL"].endswith(":8000/v1")
        assert f"{part}OPENAI_API_KEY" in given
    assert given["IMAGES_OPENAI_API_BASE_URL"].endswith(":8001/v1")


@pytest.mark.parametrize("text", blocks("yaml"))
def test_files_are_yaml_and_name_the_server(text: str) -> None:
    assert yaml.safe_load(text)
    assert ":8000/v1" in text
