"""The commands of docs/docker.md fit the images and compose.yaml."""

import re
import shlex

import pytest
from support.repository.command_line import parse
from support.repository.containers import ROOT, last, ours, services

DOCS = (ROOT / "docs" / "docker.md").read_text()
RUNS = re.findall(r"^    docker run (.*)$", DOCS.replace("\\\n", ""), re.MULTILINE)


@pytest.mark.parametrize("line", RUNS)
def test_a_docker_run_that_is_shown_has_gpus_shared_memory_and_a_server_that_listens(
    line: str,
) -> None:
    words = shlex.split(line)
    image = next(word for word in words if word.startswith("omnistage:"))
    options, command = words[: words.index(image)], words[words.index(image) + 1 :]
    file = {one["image"]: one["build"]["dockerfile"] for one in ours().values() if "build" in one}[
        image
    ]
    assert f"docker build --file {file} --tag {image} ." in DOCS
    assert ("--gpus" in options) == (image == "omnistage:cuda")
    assert {"--shm-size", "--init", "--publish"} <= set(options)
    port = last("EXPOSE", file).rest
    assert options[options.index("--publish") + 1] == f"127.0.0.1:{port}:{port}"
    volumes = {options[i + 1].split(":")[1] for i, one in enumerate(options) if one == "--volume"}
    assert volumes <= set(last("VOLUME", file).words)
    if command:
        assert command[0] == "omnistage"
        parse(command[1], command[2:])
        assert command[command.index("--host") + 1] == "0.0.0.0"


def test_there_are_docker_runs() -> None:
    assert len(RUNS) == 2


def test_every_profile_and_service_of_a_command_that_is_shown_exists() -> None:
    lines = re.findall(r"docker compose ((?:--profile \w+ )+up[^#`\n]*)", DOCS)
    assert len(lines) >= 5
    for line in lines:
        profiles = set(re.findall(r"--profile (\w+)", line))
        assert profiles <= {name for one in services().values() for name in one.get("profiles", ())}
        for name in line.partition(" up")[2].split():
            assert set(services()[name].get("profiles", profiles)) & profiles
