"""The commands in docs/performance.md run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from support.bench.fake_openai import Script
from support.bench.profiles import ProfiledServer, run, span, write
from support.gateway.serving import OMNI, running_gateway
from support.media.sounds import tone, wav_of
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.server.endpoints.realtime import realtime

TEXT = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
SHELL: list[str] = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
SPEECH = Script(text_s=(0.0, 0.0), packets=((0.0, 0.4), (0.0, 0.8)))


def commands() -> list[list[str]]:
    """The words of each command."""
    found: list[list[str]] = []
    for word in shlex.split("".join(SHELL).replace("\\\n", "")):
        if word == "omnistage":
            found.append([])
        found[-1].append(word)
    return found


def are_spoken(words: list[str]) -> bool:
    """Whether a command talks to a session."""
    return words[1:3] == ["bench", "realtime"]


def test_the_documentation_has_commands() -> None:
    assert len(commands()) == 15


@pytest.mark.parametrize(
    "words",
    [words for words in commands() if not are_spoken(words)],
    ids=lambda words: " ".join(words[3:6]),
)
def test_a_documented_command_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (body,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    Path("body.json").write_text(body)
    dialect = "vllm-omni" if "sampling_params_list" in " ".join(words) else "openai"
    packets = SPEECH.packets[:1]  # a second one could be late on a busy machine: an underrun
    Path("admin.key").write_text("sk-admin\n")
    trace = write(tmp_path / "trace.json.gz", [span(0.0, 100.0), run("a", 10.0, 20.0)])
    script = Script(SPEECH.text_s, packets, dialect=dialect)
    fake = ProfiledServer(script, stopped={"code2wav": {"file": str(trace)}})
    with fake.running() as url:
        arguments = [url if word.startswith("http") else word for word in words[1:]]
        if "--rate" in words:  # the same arrivals, a hundred times as fast
            rates = arguments[arguments.index("--rate") + 1].split(",")
            faster = ",".join(str(50 * 2**number) for number in range(len(rates)))
            arguments[arguments.index("--rate") + 1] = faster
        result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert fake.bodies
    options = ("--json", "--plot", "--profile")
    written = [words[words.index(option) + 1] for option in options if option in words]
    assert all(Path(name).stat().st_size for name in written)


@pytest.mark.parametrize(
    "words", [words for words in commands() if are_spoken(words)], ids=lambda words: words[4]
)
def test_a_documented_conversation_is_held(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For two short turns, with speech told by loudness."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(realtime, "silero_file", lambda: None)
    Path("question.wav").write_bytes(wav_of(tone(0.5)))
    with running_gateway(tmp_path, OMNI) as gateway:
        arguments = [gateway.url if word.startswith("http") else word for word in words[1:]]
        shorter = ["--turns", "2", "--speech-seconds", "0.5"]
        result = CliRunner().invoke(cli.app, [*arguments, *shorter])
    assert result.exit_code == 0, result.output
    assert "--json" not in words or Path("speech.json").stat().st_size
