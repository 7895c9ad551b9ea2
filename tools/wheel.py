"""`make wheel`: a stranger's first ten minutes, with the wheel and all that it requires.

It builds the sdist and the wheel, installs the wheel with an extra by pip into a new environment,
serves the embedded model there, asks it for text and speech, and says how long each took.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from support.ports import free_port
from support.repository.packages import Environment, build, call
from support.servers.server import is_ready

START_S, STOP_S = 600.0, 60.0
QUESTION = {
    "messages": [{"role": "user", "content": "What is two plus three?"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "adam", "format": "wav"},
    "temperature": 0,
}


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took."""
    started = time.monotonic()
    yield
    print(f"{what:40}{time.monotonic() - started:7.1f} s", flush=True)  # noqa: T201


@contextmanager
def serving(environment: Environment, model: str, folder: Path) -> Iterator[str]:
    """The address of a server of the environment that is ready; it must end by itself."""
    port = free_port()
    program = environment.folder / "bin" / "omnistage"
    command = [str(program), "serve", model, "--port", str(port)]
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    deadline = time.monotonic() + START_S
    try:
        while not is_ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{log.read_text()[-6000:]}\nthe server is not ready")
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        code = server.wait(STOP_S)
    if code:
        raise SystemExit(f"{log.read_text()[-6000:]}\nthe server ended with {code}")


def ask(url: str) -> None:
    """One answer with text and speech."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=120).raise_for_status()
    audio = answer.json()["choices"][0]["message"]["audio"]
    assert audio["transcript"] == "Two plus three is five.", audio["transcript"]
    assert len(audio["data"]) > 10_000
    num_bytes = len(audio["data"]) * 3 // 4
    print(f"answer: {audio['transcript']!r} and {num_bytes} bytes of sound")  # noqa: T201


def main() -> None:
    """Build, install, serve, ask."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--extra", default="cpu", help="cpu or cuda")
    parser.add_argument("--dist", type=Path, help="where to put the sdist and the wheel")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which is kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        with timed("sdist and wheel"):
            built = build(folder)
        if arguments.dist is not None:
            arguments.dist.mkdir(parents=True, exist_ok=True)
            for path in (built.sdist, built.wheel):
                shutil.copy(path, arguments.dist)
        environment = Environment(folder / "environment")
        with timed(f"pip install omnistage[{arguments.extra}]"):
            venv.create(environment.folder, with_pip=True, symlinks=True)
            wanted = f"omnistage[{arguments.extra}] @ {built.wheel.as_uri()}"
            call(environment.python, "-m", "pip", "install", "--quiet", wanted, cwd=folder)
        with timed("server, question and end"), serving(environment, "small", folder) as url:
            ask(url)


if __name__ == "__main__":
    main()
