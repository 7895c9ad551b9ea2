"""docs/tracing.md: its example runs, its options are the command's, and its line is the log's."""

import re
from pathlib import Path

import pytest
from support.gateway.serving import OMNI, running_gateway
from typer.main import get_command

from omnistage.server import cli
from omnistage.server.common.outcome import Outcome
from omnistage.server.common.trace import ENDED, FIRST_AUDIO, FIRST_TEXT, GATEWAY, RECEIVED, Trace
from omnistage.server.http.access.keys import Keys
from omnistage.server.telemetry.follow import line_of

TEXT = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()


def test_the_example_follows_its_own_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with running_gateway(tmp_path, OMNI, admin_keys=Keys(["sk-admin"])) as gateway:
        names = {"URL": gateway.url, "ADMIN_KEY": "sk-admin"}
        exec(compile(program, "unwritten.py", "exec"), names)
    header, *steps = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"00-4bf92f3577b34da6a3ce929d0e0e4736-(?!00f067aa0ba902b7)\w{16}-01", header
    )
    told = [re.fullmatch(r"(\w+ \w+) \d+\.\d+(e-\d+)?", step) for step in steps]
    assert [one and one[1] for one in told][-2:] == ["thinker first_output", "gateway first_text"]


def test_the_options_are_those_of_the_commands() -> None:
    known = {
        option
        for command in ("serve", "trace")
        for parameter in get_command(cli.app).commands[command].params  # type: ignore[attr-defined]
        for option in parameter.opts
    }
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= known


def test_the_line_of_a_request_looks_as_it_is_shown() -> None:
    (shown,) = re.findall(r"^20.* INFO \[\w+\] (POST .*)$", TEXT, re.MULTILINE)
    trace = Trace("req_5f0c", "POST", "/v1/chat/completions")
    trace.status, trace.outcome = 200, Outcome.FINISHED
    trace.num_tokens_in, trace.num_tokens_out, trace.audio_s = 21, 16, 3.2
    for event, ms in ((RECEIVED, 0), (FIRST_TEXT, 41), (FIRST_AUDIO, 97), (ENDED, 310)):
        trace.timeline.mark(GATEWAY, event, ms * 1_000_000)
    assert line_of(trace) == shown
