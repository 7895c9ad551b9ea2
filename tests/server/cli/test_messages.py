"""Messages of the command line about what was typed wrong, or what the machine refuses."""

import errno
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.server.cli.guard import cannot_listen
from omnistage.stage_configs.pick import GRAPHS

TINY = str(GRAPHS / "qwen3_omni_tiny.yaml")
SERVED = ["serve", TINY, "--model", "m"]
WIDE = {"COLUMNS": "400"}
PORT_CURE = "end what has the port, or take another with --port (0: any that is free)"
ADDRESS_CURE = "take 127.0.0.1 for this machine alone, or 0.0.0.0 for all of its addresses"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env=WIDE)


def test_version_names_what_a_bug_report_needs_and_imports_none_of_it() -> None:
    program = (
        "import sys\nfrom omnistage.server.cli import main\nsys.argv = ['omnistage', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('heavy:', sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    (vllm,) = set(packages_distributions()["vllm"])
    said = (
        f"omnistage {version('omnistage')}, vLLM {version(vllm)}, torch {version('torch')}, "
        f"Python {platform.python_version()}"
    )
    assert done.stdout.splitlines() == [said, "heavy: []"]


WRONG_VALUES = [
    ([*SERVED, "--port", "99999"], "'--port': must be at most 65535, not 99999"),
    (["demo", "--port", "99999"], "'--port': must be at most 65535, not 99999"),
    (["up", "--port", "99999"], "'--port': must be at most 65535, not 99999"),
    (["up", "--page-port", "99999"], "'--page-port': must be at most 65535, not 99999"),
    ([*SERVED, "--port", "-1"], "'--port': must be at least 0, not -1"),
    ([*SERVED, "--port", "abc"], "'--port': 'abc' is not an integer"),
    ([*SERVED, "--max-queue", "0"], "'--max-queue': must be at least 1, not 0"),
    ([*SERVED, "--request-timeout", "x"], "'--request-timeout': 'x' is not a number"),
    (["plan", TINY, "--machine", "x"], "'--machine': 'x' is not an integer"),
    (["bench", "serve", "--max-tokens", "x"], "'--max-tokens': 'x' is not an integer"),
    (["tiny", "qwen3-omni", "x", "--seed", "y"], "'--seed': 'y' is not an integer"),
    ([*SERVED, "--mps", "maybe"], "'--mps': 'maybe' is not one of 'auto', 'on', 'off'."),
    (
        [*SERVED, "--log-level", "loud"],
        "'--log-level': 'loud' is not one of 'debug', 'info', 'warning', 'error'.",
    ),
]


@pytest.mark.parametrize(
    ("typed", "says"),
    WRONG_VALUES,
    ids=[" ".join(one[0][:1] + one[0][-2:]) for one in WRONG_VALUES],
)
def test_a_wrong_value_is_refused_in_words_for_a_person(typed: list[str], says: str) -> None:
    result = run(*typed)
    assert result.exit_code == 2
    assert f"Invalid value for {says}" in result.output
    assert "Input should be" not in result.output


def test_a_flag_like_none_of_ours_is_answered_with_where_all_are_listed() -> None:
    for command in ("serve", "plan", "check", "up"):
        result = run(command, TINY, "--foo")
        assert (result.exit_code, result.output) == (
            2,
            "error: there is no --foo; --help lists all options\n",
        )


def test_an_empty_name_for_the_model_is_refused_in_plain_words(tmp_path: Path) -> None:
    for command in ("serve", "plan", "check"):
        result = run(command, TINY, "--served-model-name", "")
        assert result.exit_code == 1
        assert result.output == "error: --served-model-name: a name has at least one character\n"
    file = tmp_path / "graph.yaml"
    stages = "stages: {text: {kind: vllm.text}}\noutputs: {text: text}\n"
    file.write_text(f"served_model_name: ['']\n{stages}")
    says = "served_model_name.0: must be a string of at least one character, not ''"
    assert run("check", str(file)).output == f"error: {file}:1: {says}\n"


LISTENING = {
    "serve": [*SERVED, "--host", "HOST", "--port", "PORT"],
    "dry run": [*SERVED, "--host", "HOST", "--port", "PORT", "--dry-run"],
    "up": ["up", TINY, "--model", "m", "--host", "HOST", "--port", "PORT", "--no-page"],
    "demo": ["demo", "--host", "HOST", "--port", "PORT"],
}


@pytest.mark.parametrize("command", LISTENING)
def test_an_address_that_cannot_be_had_is_told_with_what_to_do_about_it(command: str) -> None:
    def refused(host: str, port: int) -> str:
        typed = [one.replace("HOST", host) for one in LISTENING[command]]
        result = run(*[one.replace("PORT", str(port)) for one in typed])
        assert result.exit_code == 1
        return result.output.splitlines()[-1]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("127.0.0.1", port)
    place = f"error: cannot listen on 127.0.0.1:{port}"
    assert said == f"{place}: Address already in use; {PORT_CURE}"
    place = "error: cannot listen on 192.0.2.1:8000"
    assert refused("192.0.2.1", 8000) == (
        f"{place}: this machine has no address 192.0.2.1; {ADDRESS_CURE}"
    )


def test_a_port_that_needs_permission_and_a_host_without_an_address_have_cures_of_their_own() -> (
    None
):
    denied = PermissionError(errno.EACCES, "Permission denied (while attempting to bind on x)")
    assert cannot_listen("127.0.0.1:80", denied) == (
        "cannot listen on 127.0.0.1:80: Permission denied; ports below 1024 need permission: "
        "take another with --port"
    )
    unknown = socket.gaierror(-2, "Name or service not known")
    assert cannot_listen("no.invalid:80", unknown) == (
        "cannot listen on no.invalid:80: Name or service not known; correct --host"
    )


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/dev/shm/omnistage")


def denied(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", "/somewhere")


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        (full, "/dev/shm/omnistage: No space left on device"),
        (denied, "/somewhere: Permission denied"),
    ],
)
@pytest.mark.parametrize(
    ("place", "typed"),
    [
        ("omnistage.server.serve.serve", SERVED),
        ("omnistage.server.serve.make_run_directory", [*SERVED, "--port", "0"]),
        ("omnistage.server.cli.tiny.mark_random", ["tiny", "embedding", "FOLDER"]),
        ("omnistage.server.cli.warm.start_and_end", ["warm", TINY, "--model", "m"]),
        ("omnistage.connectors.bench.run_bench", ["bench", "connectors"]),
        ("omnistage.server.cli.plan.print_plan", ["plan", TINY]),
        ("omnistage.server.cli.check.print_plan", ["check", TINY]),
    ],
    ids=["serve", "serve's folder", "tiny", "warm", "bench", "plan", "check"],
)
def test_what_the_machine_refuses_is_one_line_of_every_command(
    place: str,
    typed: list[str],
    refuse: Callable[..., None],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, name = place.rpartition(".")
    monkeypatch.setattr(
        sys.modules.get(module) or __import__(module, fromlist=[name]), name, refuse
    )
    result = run(*[one.replace("FOLDER", str(tmp_path / "x")) for one in typed])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].endswith(says)
    assert result.output.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.output


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word() -> None:
    command = f"{sys.executable} -m omnistage.server.cli plan {TINY} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("kind", ["RTX4090", "RTX5090", "rtx3090", "4090"])
def test_cards_that_people_have_are_kinds_of_gpus(kind: str) -> None:
    from omnistage.server.cli.planning.gpus import read_gpus

    memory = 32 if "50" in kind else 24
    assert read_gpus(f"1x{kind}").kind.memory_gb == memory


PANELS = {
    "Address": ["--host", "--port", "--root-path"],
    "Model": ["--model", "--stage", "--served-model-name"],
    "Stages and GPUs": ["--mps", "--load-format"],
    "Keys and limits": ["--api-key", "--max-queue"],
    "Media": ["--allowed-media-path", "--voices"],
    "Browsers and TLS": ["--allowed-origins", "--ssl-certfile"],
    "Logs, traces, profiles": ["--log-level", "--otlp-endpoint"],
}


@pytest.mark.parametrize("command", ["serve", "up"])
def test_the_help_is_in_panels_and_names_variables_in_one_sentence(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "120"}).output
    titles = [title for title in PANELS if f"─ {title} ─" in shown]
    assert titles == list(PANELS)
    for title, flags in PANELS.items():
        panel = shown[shown.index(f"─ {title} ─") :].partition("╰")[0]
        assert all(flag in panel for flag in flags), panel
    assert "[env var" not in shown
    assert "OMNISTAGE_LOG_LEVEL=warning for --log-level warning" in " ".join(shown.split())
