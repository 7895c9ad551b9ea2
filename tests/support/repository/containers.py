"""The container files of the repository, parsed."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, such as COPY, and what follows it."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """What follows without flags: a JSON list, or words as the shell reads them."""
        if self.rest.startswith("["):
            return [str(word) for word in json.loads(self.rest)]
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]

    @property
    def flags(self) -> list[str]:
        """The flags before anything else."""
        return [word for word in shlex.split(self.rest) if word.startswith("--")]


@cache
def dockerfile(name: str) -> list[list[Instruction]]:
    """The stages of a Dockerfile, each from its FROM on; what is before the first is in none."""
    stages: list[list[Instruction]] = []
    for instruction in _instructions((ROOT / name).read_text()):
        if instruction.name == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(instruction)
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        yield Instruction(name, rest.strip())


def last(name: str, file: str) -> Instruction:
    """The last such instruction of a Dockerfile's last stage."""
    return [one for one in dockerfile(file)[-1] if one.name == name][-1]


def environment(file: str) -> dict[str, str]:
    """What the last stage of a Dockerfile sets."""
    pairs = [word for one in dockerfile(file)[-1] if one.name == "ENV" for word in one.words]
    return dict(pair.split("=", 1) for pair in pairs)


@cache
def compose() -> dict[str, Any]:
    """compose.yaml."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return parsed


def services() -> dict[str, dict[str, Any]]:
    """Its services by name."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    """Return the services that run an image of ours."""
    return {name: one for name, one in services().items() if one["image"].startswith("omnistage:")}


def servers() -> dict[str, dict[str, Any]]:
    """Return the services that serve a model; the others of ours are pages."""
    return {name: one for name, one in ours().items() if "demo" not in command_of(one)}


def command_of(service: dict[str, Any]) -> list[str]:
    """What a service of ours runs: its own command, or its image's."""
    command = service.get("command") or last("CMD", service["build"]["dockerfile"]).words
    return [str(word) for word in command]
