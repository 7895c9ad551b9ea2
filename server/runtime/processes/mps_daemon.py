"""NVIDIA's MPS daemon of one server: started before its stages and ended after them.

Stages that share a GPU run at the same time under MPS, and in turns without it. The daemon has its
pipes in the run's folder, so other programs do not use it, and the next server finds it there if
this one is killed.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import psutil

from omnistage.stage_configs.gpus import VISIBLE, used_gpus
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.rules.mps import CONTROL, ask_daemon

logger = logging.getLogger(__name__)

FOLDER = "mps"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PROCESS_NAME = "nvidia-cuda-mps"  # what the names of the daemon and of its servers begin with
START_PATIENCE_S = 30.0
QUIT_PATIENCE_S = 10.0
POLL_S = 0.02


class Mps(StrEnum):
    """The ways to start MPS: if it helps, always, or never."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class MpsError(Exception):
    """MPS was asked for and cannot be had; the message says why."""


def needs_daemon(mode: Mps, graph: StageGraph) -> bool:
    """Returns whether this server has to start a daemon; MpsError if it has to and cannot."""
    if graph.placement.is_on_nodes:
        if mode is Mps.ON:
            raise MpsError("it is for stages of this machine; on Ray's nodes each has its own GPUs")
        return False
    stages = [used_gpus(replica.gpus) for replica in graph.replicas.values()]
    if mode is Mps.OFF or (mode is Mps.AUTO and not _shared(stages)):
        return False
    if not any(stages):
        raise MpsError("no stage uses a GPU")
    if shutil.which(CONTROL) is None:
        return _cannot(mode, f"{CONTROL} is not on the PATH; it comes with NVIDIA's driver")
    if ask_daemon("get_server_list") is not None:
        logger.info("an MPS daemon runs already: the stages use it")
        return False
    return True


@contextlib.contextmanager
def mps_daemon(mode: Mps, graph: StageGraph, run: Path) -> Iterator[None]:
    """Stages that are started inside run under MPS if `mode` says so."""
    if not needs_daemon(mode, graph) or not _start(mode, run):
        yield
        return
    before = {name: os.environ.get(name) for name in (PIPES, LOGS)}
    os.environ |= _folders(run)
    try:
        yield
    finally:
        for name, value in before.items():
            _set(name, value)
        end_daemon(run)


def end_daemon(run: Path) -> None:
    """End the daemon of a run and its servers, if there is one."""
    if not (run / FOLDER).is_dir():
        return
    ask_daemon("quit", os.environ | _folders(run), QUIT_PATIENCE_S)
    deadline = time.monotonic() + QUIT_PATIENCE_S
    while (left := _processes(run)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for process in left:
        logger.warning("MPS process %d does not end: killing it", process.pid)
        with contextlib.suppress(psutil.Error):
            process.kill()


def _start(mode: Mps, run: Path) -> bool:
    """Start the daemon; whether it runs."""
    folders = _folders(run)
    for folder in folders.values():
        Path(folder).mkdir(parents=True)
    environment = os.environ | folders
    # The daemon would number the GPUs anew if it saw only some of them, and stages would then
    # name other GPUs than they mean.
    environment.pop(VISIBLE, None)
    problem = _start_problem(environment, run / FOLDER / "start.log")
    if problem:
        end_daemon(run)
        return _cannot(mode, problem)
    logger.info("MPS is running: stages on one GPU run at the same time")
    return True


def _start_problem(environment: dict[str, str], log: Path) -> str:
    """Start the daemon in the background; why it did not start, or nothing.

    Its output goes to a file: a pipe would stay open for as long as the daemon lives.
    """
    try:
        with log.open("wb") as output:
            subprocess.run(
                [CONTROL, "-d"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=START_PATIENCE_S,
                check=True,
            )
    except subprocess.CalledProcessError as error:
        said = log.read_text(errors="replace").strip()
        return f"{CONTROL} -d ended with exit code {error.returncode}: {said or 'it said nothing'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ask_daemon("get_server_list", environment) is None:
        return "the daemon was started and does not answer"
    return ""


def _cannot(mode: Mps, reason: str) -> bool:
    """MPS cannot be had: an error if it was asked for, otherwise a warning."""
    if mode is Mps.ON:
        raise MpsError(reason)
    logger.warning("no MPS: %s; stages on one GPU take turns", reason)
    return False


def _shared(stages: list[tuple[int, ...]]) -> bool:
    """Returns whether two stages use one GPU."""
    uses = Counter(gpu for gpus in stages for gpu in set(gpus))
    return any(count > 1 for count in uses.values())


def _folders(run: Path) -> dict[str, str]:
    """Where the daemon of a run has its pipes and logs."""
    return {PIPES: str(run / FOLDER / "pipe"), LOGS: str(run / FOLDER / "log")}


def _processes(run: Path) -> list[psutil.Process]:
    """The processes of MPS that were started for a run and still live."""
    pipes = _folders(run)[PIPES]
    return [process for process in psutil.process_iter() if _is_of_daemon(process, pipes)]


def _is_of_daemon(process: psutil.Process, pipes: str) -> bool:
    try:
        is_mps = process.name().startswith(PROCESS_NAME)
        return is_mps and process.environ().get(PIPES) == pipes
    except psutil.Error:
        return False  # it has just ended, or belongs to somebody else


def _set(name: str, value: str | None) -> None:
    """Give an environment variable its former value."""
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value
