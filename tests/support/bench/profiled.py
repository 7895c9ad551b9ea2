"""A bench that profiles stages."""

import re
from pathlib import Path

from support.bench.fake_openai import Script
from support.bench.profiles import ProfiledServer
from typer.testing import CliRunner, Result

from omnistage.server import cli

KEY = "sk-admin"
ONE = Script(text_s=(0.0,))
SHORT = ["--requests", "9", "--warmups", "2", "--profile-seconds", "0.01"]


def bench(server: ProfiledServer, file: Path, *more: str, key: str | None = KEY) -> Result:
    runner = CliRunner(env={"COLUMNS": "160", "OMNISTAGE_ADMIN_KEY": key})
    with server.running() as url:
        arguments = ["bench", "serve", url, *SHORT, "--profile", str(file), *more]
        return runner.invoke(cli.app, arguments)


def said(result: Result) -> str:
    """All that was printed, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[─-╿]", " ", result.output).split())
