"""The workflows of GitHub run what exists, on every Python that the package supports."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}


class Loader(yaml.SafeLoader):
    """`on` is a key and not a truth value, as GitHub reads it."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, match) for tag, match in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parsed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(path.read_text(), Loader)
    return found


def jobs() -> dict[str, Any]:
    return {f"{w} {name}": j for w in WORKFLOWS for name, j in parsed(WORKFLOWS[w])["jobs"].items()}


def test_the_suite_runs_on_every_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = jobs()["check test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: "
    assert pythons == [one.removeprefix(prefix) for one in project["classifiers"] if prefix in one]
    low, high = re.findall(r"3\.\d+", project["requires-python"])
    assert pythons[0] == low
    assert int(pythons[-1][2:]) + 1 == int(high[2:])


def test_every_target_that_is_made_exists() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS.values())
    targets = set(re.findall(r"run: make (\w+)", text))
    assert targets == {"check", "test", "docs", "snippets", "wheel", "compose"}
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_reads_only_and_ends(name: str) -> None:
    workflow = parsed(WORKFLOWS[name])
    assert workflow["permissions"] == {"contents": "read"}
    assert {"push", "pull_request"} <= workflow["on"].keys()
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        for step in job["steps"]:
            assert "@" in step.get("uses", "@") or step["uses"].startswith("docker://")


def test_no_workflow_names_a_host_beyond_this_machine() -> None:
    for path in GITHUB.rglob("*"):
        if path.is_file():
            assert set(re.findall(r"https?://([\w.-]+)", path.read_text())) <= {"localhost"}
