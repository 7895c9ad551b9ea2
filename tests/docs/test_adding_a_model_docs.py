"""docs/adding-a-model.md is the package of tests/outside_package, followed command by command."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.repository.packages import ROOT, Environment, tree_environment
from support.servers.server import TinyServer, running_server

PACKAGE = ROOT / "tests" / "outside_package"
PAGE = (ROOT / "docs" / "adding-a-model.md").read_text()
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SOURCES = "omnistage-shout"  # as the page calls the package's folder


def files_of_the_page() -> dict[str, str]:
    """The content of each block that has a file's name."""
    return {name: text for _, name, text in BLOCK.findall(PAGE) if name}


def commands_of_the_page() -> list[str]:
    """Each line of each block of commands."""
    blocks = [text for language, _, text in BLOCK.findall(PAGE) if language == "bash"]
    joined = "".join(blocks).replace("\\\n", "")
    return [line for line in joined.splitlines() if line.strip()]


def files_of_the_package() -> dict[str, str]:
    """All that it consists of; the page leaves out what has no code."""
    paths = (path for path in PACKAGE.rglob("*") if path.is_file())
    return {
        path.name: path.read_text()
        for path in paths
        if path.name not in ("__init__.py", "py.typed") and path.suffix != ".pyc"
    }


def test_the_page_shows_the_files_of_the_package_as_they_are() -> None:
    shown, there = files_of_the_page(), files_of_the_package()
    assert shown.keys() == there.keys()
    assert len(there) == 7
    for name, text in there.items():
        assert shown[name] == text, name


@dataclass
class Follower:
    """Somebody who does what the page says, in an environment and a folder of their own."""

    environment: Environment
    folder: Path
    servers: ExitStack
    server: TinyServer | None = None
    outputs: list[tuple[str, str]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    def follow(self, line: str) -> None:
        program, *words = shlex.split(line)
        if program == "pip":
            self._pip(*words)
        elif words[0] == "serve":
            self._serve(*words[1:])
        elif program == "omnistage":
            self.outputs.append((line, self.omnistage(*words)))
        elif program == "curl":
            self._curl(*words)
        else:
            assert program == "cat", line
            self.outputs.append((line, (self.folder / words[0]).read_text()))

    def omnistage(self, *words: str) -> str:
        """What the command prints, also when it fails."""
        command = [str(self.environment.python), "-m", "omnistage.server.cli", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        return f"{done.returncode}: {done.stdout}{done.stderr}"

    def _pip(self, command: str, *words: str) -> None:
        if command == "uninstall":
            self.servers.close()
        more = ("--no-deps", "--no-build-isolation") if command == "install" else ()
        self.environment.pip(command, *more, *words, cwd=self.folder)

    def _serve(self, target: str) -> None:
        log, python = self.folder / "log", str(self.environment.python)
        serving = running_server(target, log, python=python, cwd=self.folder)
        self.server = self.servers.enter_context(serving)

    def _curl(self, url: str, flag: str, body: str) -> None:
        assert flag == "--json"
        assert self.server is not None
        address = url.replace("http://127.0.0.1:8000", self.server.url)
        headers = {"Content-Type": "application/json"}
        response = httpx.post(address, content=body, headers=headers, timeout=600)
        self.answers.append((response.status_code, response.json()))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Follower]:
    """The page, done from its first command to its last."""
    folder = tmp_path_factory.mktemp("followed")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(PACKAGE, folder / SOURCES, ignore=left_out)
    environment = tree_environment(tmp_path_factory.mktemp("environment"))
    with ExitStack() as servers:
        follower = Follower(environment, folder, servers)
        for line in commands_of_the_page():
            follower.follow(line)
        yield follower


def outputs_of(followed: Follower, words: str) -> list[str]:
    return [output for line, output in followed.outputs if words in line]


def test_an_installed_family_is_checked_and_written(followed: Follower) -> None:
    plan, model = outputs_of(followed, "omnistage ")[:2]
    assert plan.startswith("0: ")
    for word in ("shout.reader", "shout.writer", "journal"):
        assert word in plan
    assert model.startswith("0: ")
    assert (followed.folder / "model" / "config.json").is_file()


def test_a_real_server_answers_with_it(followed: Follower) -> None:
    ((status, answer),) = followed.answers
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == "ONCE MORE PLEASE!!"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 3
    assert '"content": "ONCE MORE PLEASE!!"' in PAGE


def test_its_chunks_went_through_its_connector(followed: Follower) -> None:
    (journal,) = outputs_of(followed, "cat ")
    feed = ["reader.writer.feed: StageTokens"] * 3 + ["reader.writer.feed: NothingToSay"]
    assert journal.splitlines() == ["reader.writer.open: Open", *feed]


def test_nothing_is_left_of_it_when_it_is_uninstalled(followed: Follower) -> None:
    refusal = outputs_of(followed, "omnistage ")[-1]
    assert refusal.startswith("1: ")
    sentence = "stages.reader.kind: unknown kind 'shout.reader'; allowed: bagel.llm, "
    assert sentence in refusal
    assert sentence in PAGE
    unknown = followed.omnistage("tiny", "shout", "again")
    assert unknown.startswith("1: ")
    assert "unknown model 'shout'; allowed: bagel, dreamid-omni, embedding, flux, " in unknown
    left = {path.name for path in followed.environment.folder.rglob("*shout*")}
    assert left == set()
