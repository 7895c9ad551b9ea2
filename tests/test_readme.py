"""What the README shows works: its request, its graph fragment, its commands."""

import json
import re
from pathlib import Path

import httpx
import yaml
from support.gateway import MODEL, OMNI, running_gateway
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.graph import Deadlines
from omnistage.stage_configs.pick import TEXT_ONLY

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def test_the_request_is_answered(tmp_path: Path) -> None:
    (body,) = re.findall(r"-d '(\{.*?\})'", TEXT, re.DOTALL)
    request = json.loads(body) | {"model": MODEL}
    request["messages"][0]["content"] = "words"
    with running_gateway(tmp_path, OMNI) as gateway:
        response = httpx.post(f"{gateway.url}/v1/chat/completions", json=request)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["audio"]["data"]


def test_the_deadlines_are_the_defaults() -> None:
    (fragment,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert Deadlines(**yaml.safe_load(fragment)["deadlines"]) == Deadlines()


def test_every_command_exists() -> None:
    for command in re.findall(r"`omnistage ((?:bench )?[a-z]+)", TEXT):
        result = CliRunner().invoke(cli.app, [*command.split(), "--help"])
        assert result.exit_code == 0, command


def test_every_target_exists() -> None:
    targets = set(re.findall(r"make ([a-z]+)", TEXT))
    assert {"demo", "test", "serve", "check", "chaos", "soak"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_equality_is_claimed_for_what_was_shown() -> None:
    (claim,) = [part for part in TEXT.split("\n\n") if "`generate`" in part]
    for condition in ("random", "float32", "on a CPU", "one GPU", "bfloat16", "performance.md"):
        assert condition in claim


def test_the_table_of_models_says_which_are_text_only() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| Qwen2.5-Omni")]
    assert TEXT_ONLY in row


def test_the_compose_file_uses_the_dockerfile_that_is_there() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    builds = [service["build"] for service in services.values() if "build" in service]
    assert builds
    for build in builds:
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
