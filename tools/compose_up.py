"""`make compose`: compose.yaml by a real Docker engine, from the build to an end without leftovers.

Builds the image for a CPU, starts server and page, queries both, kills a stage in the container,
stops the server while it answers, and starts everything again on the same volumes with the API
opened and a key set. Prints how long each part took. Needs Python, Docker with Compose, and the
ports of compose.yaml.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PROJECT = "omnistage-check"
API, PAGE = "http://127.0.0.1:8000", "http://127.0.0.1:7860"
START_S, ANSWER_S = 900.0, 120.0
FRAME_S = 0.08
NUM_CLIENTS, NUM_FRAMES = 8, 900  # of speech that takes longer than a server without drain_s waits
UNSET_DRAIN_S = 2.0
KEY, MODEL = "sk-check", "small"
OPENED = {
    "OMNISTAGE_ADDRESS": "0.0.0.0",
    "OMNISTAGE_API_KEY": KEY,
    "OMNISTAGE_SERVED_MODEL_NAME": "toy",
}
KILL = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    words = path.read_bytes().decode(errors="replace").replace("\\0", " ").split()
    if "--importer" in words or "omnistage.stages.worker.worker" not in words:
        continue
    if words[words.index("--stage") + 1] == "talker":
        os.kill(int(path.parent.name), signal.SIGKILL)
        break
else:
    raise SystemExit("no process of the talker")
"""


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes


def query(url: str, body: Any = None, key: str | None = None) -> Answer:
    """Send a GET, or with a body a POST of JSON; status 0 if nothing answers."""
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return Answer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read())
    except (OSError, HTTPException) as error:
        return Answer(0, str(error).encode())


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Print how long a part took."""
    started = time.monotonic()
    yield
    report(part, f"{time.monotonic() - started:7.1f} s")


def report(part: str, outcome: str) -> None:
    """Print one line."""
    print(f"{part:56}{outcome}", flush=True)  # noqa: T201


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {START_S:.0f} s: {what}"
        time.sleep(0.2)


class Compose:
    """Compose with compose.yaml, for a project of its own."""

    def __init__(self, folder: Path) -> None:
        """Take Docker's plugin, or the older program; variables come from a file in `folder`."""
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
        program = ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]
        assert shutil.which(program[0]), "neither docker compose nor docker-compose is installed"
        self.variables = folder / ".env"
        self.variables.write_text("")
        self.command = [*program, "--project-name", PROJECT, "--project-directory", str(ROOT)]
        self.command += ["--file", str(ROOT / "compose.yaml"), "--env-file", str(self.variables)]
        self.environment = {
            **{name: at for name, at in os.environ.items() if not name.startswith("OMNISTAGE_")},
            "DOCKER_BUILDKIT": "1",  # which older programs do not take by themselves
            "COMPOSE_DOCKER_CLI_BUILD": "1",
        }

    def __call__(self, *arguments: str, is_shown: bool = False) -> str:
        """Run a command of Compose and return its output; raises if it fails."""
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            cwd=ROOT,
            text=True,
            stdout=None if is_shown else subprocess.PIPE,
            stderr=None if is_shown else subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}"
        return done.stdout or ""

    def address(self, service: str, port: int) -> str:
        """The address and port of this machine that a port of a container is bound to."""
        return self("port", service, str(port)).strip()

    def inspect(self, service: str, form: str) -> str:
        """A property of a service's container, which may have ended."""
        name = f"label=com.docker.compose.service={service}"
        project = f"label=com.docker.compose.project={PROJECT}"
        found = docker("ps", "--all", "--quiet", "--filter", name, "--filter", project).split()
        assert len(found) == 1, f"{len(found)} containers of {service}"
        return docker("inspect", "--format", form, found[0]).strip()


def docker(*arguments: str) -> str:
    """Run a command of Docker and return its output."""
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def is_ready() -> bool:
    """Return whether the server is ready."""
    return query(f"{API}/ready").status == 200


def has_page() -> bool:
    """Return whether the page answers, with itself."""
    answer = query(PAGE)
    return answer.status == 200 and b"gradio" in answer.body


def speech(num_frames: int) -> Any:
    """Return the body of a request for so many codec frames of speech."""
    limits = {"min_tokens": num_frames, "max_tokens": num_frames, "ignore_eos": True}
    fields = {"input": "Hello there.", "voice": "adam", "response_format": "pcm"}
    return {**fields, "stage_params": {"talker": limits}}


def check_speech(answer: Answer, num_frames: int) -> None:
    """Assert that an answer is all of the speech that was requested."""
    assert answer.status == 200, answer
    seconds = len(answer.body) / 2 / 24000
    assert abs(seconds - num_frames * FRAME_S) < 0.5, f"{seconds:.1f} s of {num_frames} frames"


def check_model(name: str, key: str | None = None) -> None:
    """Assert that the server has one model, of this name."""
    answer = query(f"{API}/v1/models", key=key)
    assert [model["id"] for model in json.loads(answer.body)["data"]] == [name], answer


def check_answers(key: str | None = None) -> None:
    """Query chat, speech, and the server from the page's container."""
    body = {"messages": [{"role": "user", "content": "What is two plus three?"}], "temperature": 0}
    with timed("  chat"):
        answer = query(f"{API}/v1/chat/completions", body, key)
        assert answer.status == 200, answer
        text = json.loads(answer.body)["choices"][0]["message"]["content"]
        assert text == "Two plus three is five.", text
    with timed("  speech, 4 s"):
        check_speech(query(f"{API}/v1/audio/speech", speech(50), key), 50)


def check_restart(compose: Compose) -> None:
    """Kill the talker's process in the container: its stage alone restarts."""
    with timed("talker killed, until it is ready again"):
        compose("exec", "-T", "server", "python", "-c", KILL)
        wait_for(lambda: not is_ready(), "the death of the talker is noticed")
        wait_for(is_ready, "the talker is ready again")
    assert compose.inspect("server", "{{.RestartCount}}") == "0", "the whole server restarted"
    check_answers()


def check_stop(compose: Compose) -> None:
    """Stop the server while it speaks: all answers are complete, and the exit code is 0."""
    url, body = f"{API}/v1/audio/speech", speech(NUM_FRAMES)
    with ThreadPoolExecutor(NUM_CLIENTS + 1) as threads, timed("server stopped while it speaks"):
        answers = [threads.submit(query, url, body) for _ in range(NUM_CLIENTS)]
        time.sleep(1)  # all of them are there
        stopped = threads.submit(compose, "stop", "server")
        wait_for(lambda: query(f"{API}/ready").status != 200, "the server gets SIGTERM")
        started = time.monotonic()
        for answer in answers:
            check_speech(answer.result(), NUM_FRAMES)
        drained_s = time.monotonic() - started
        report(f"  {NUM_CLIENTS} answers of {NUM_FRAMES * FRAME_S:.0f} s", f"{drained_s:7.1f} s")
        assert drained_s > UNSET_DRAIN_S + 1, "a server without drain_s would have waited as long"
        stopped.result()
    assert compose.inspect("server", "{{.State.ExitCode}}") == "0"


def check_open(compose: Compose) -> None:
    """The API is open with a key, from variables of a file; the page is not opened with it."""
    assert compose.address("server", 8000) == "0.0.0.0:8000"
    assert compose.address("page", 7860) == "127.0.0.1:7860"
    assert query(f"{API}/v1/models").status == 401
    check_model("toy", KEY)
    check_answers(KEY)


def check_restarts_end(compose: Compose) -> None:
    """A server that cannot start is started four times, no more."""
    compose.variables.write_text("OMNISTAGE_STAGE=nosuch.max_model_len=1\n")
    with timed("server that cannot start, until Docker gives up"):
        compose("up", "--detach", "--no-build", "server")
        ended = "{{.State.Status}} {{.RestartCount}} {{.State.ExitCode}}"
        wait_for(lambda: compose.inspect("server", ended).startswith("exited 3 "), "four starts")
        time.sleep(5)
    assert compose.inspect("server", ended).startswith("exited 3 ")
    assert not compose.inspect("server", ended).endswith(" 0")


def check_nothing_left() -> None:
    """Assert that no container, network or volume of the project is left."""
    for kind in (["ps", "--all"], ["network", "ls"], ["volume", "ls"]):
        label = f"label=com.docker.compose.project={PROJECT}"
        assert not docker(*kind, "--quiet", "--filter", label), f"{kind[0]}s are left"


def run(compose: Compose, build: Sequence[str] | None) -> None:
    if build is not None:
        with timed("build"):
            compose("build", *build, "server", is_shown=True)
    started = time.monotonic()
    compose("up", "--detach", "--no-build")
    wait_for(has_page, "the page answers")  # which it does while the server loads
    report("up, until the page answers", f"{time.monotonic() - started:7.1f} s")
    wait_for(is_ready, "the server is ready")
    report("up, until ready", f"{time.monotonic() - started:7.1f} s")
    assert compose.address("server", 8000) == "127.0.0.1:8000"
    assert compose.address("page", 7860) == "127.0.0.1:7860"
    check_model(MODEL)
    check_answers()
    read = "import urllib.request as r; r.urlopen('http://server:8000/v1/models')"
    compose("exec", "-T", "page", "python", "-c", read)
    check_restart(compose)
    check_stop(compose)
    with timed("down"):
        compose("down")
    compose.variables.write_text("".join(f"{name}={at}\n" for name, at in OPENED.items()))
    with timed("second up on the same volumes, until ready"):
        compose("up", "--detach", "--no-build")
        wait_for(is_ready, "the server is ready")
    wait_for(has_page, "the page answers")
    check_open(compose)
    with timed("down"):
        compose("down")
    check_restarts_end(compose)


def main() -> None:
    """Read the arguments; whatever happens, remove the project."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="take the image omnistage:cpu")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    words = [word for one in arguments.build_arg for word in ("--build-arg", one)]
    with tempfile.TemporaryDirectory() as folder:
        compose = Compose(Path(folder))
        try:
            run(compose, None if arguments.no_build else words)
        except BaseException:
            print(compose("logs", "--no-color", "--tail", "60"), flush=True)  # noqa: T201
            raise
        finally:
            compose("down", "--volumes")
        check_nothing_left()
    report("nothing is left", "")


if __name__ == "__main__":
    main()
