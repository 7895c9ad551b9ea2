"""A server of the tiny Qwen3-Omni with what changes no answer: drafts, edges over TCP, and less
that is installed. Two files of tests share it.
"""

import asyncio
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from support.blocked import packages_of_others, without
from support.faults.chaos import command_of
from support.servers.server import STOP_S, TinyServer, running_server
from support.servers.warm_up import warm_up

DOCS = Path(__file__).parents[3] / "docs" / "models.md"
OF_IMAGES = packages_of_others("qwen3_omni.thinker", "qwen3_omni.talker", "qwen3_omni.code2wav")
TCP = ("--set", "edges.0.connector=tcp", "--set", "edges.1.connector=tcp")
LINK = "omnistage.connectors.tcp.link"


def documented_options() -> list[str]:
    """Return what the documentation's command has behind its model."""
    (options,) = re.findall(r"^    omnistage serve MODEL (.*ngram.*)$", DOCS.read_text(), re.M)
    return shlex.split(options)


@contextmanager
def drafting_server(model: Path, folder: Path) -> Iterator[TinyServer]:
    """Serve the model with n-gram drafts and `connector: tcp` at each edge, without the packages
    of images; its links end with it.
    """
    with ExitStack() as servers:
        with pytest.MonkeyPatch.context() as patch:  # other servers begin later
            for name, value in without(folder / "site", OF_IMAGES).items():
                patch.setenv(name, value)
            log, options = folder / "log", documented_options()
            serving = running_server(str(model), log, *options, *TCP)
            running = servers.enter_context(serving)
        asyncio.run(warm_up(running))
        yield running
        processes = links(running)
    assert not psutil.wait_procs(processes, timeout=STOP_S)[1]


def links(server: TinyServer) -> list[psutil.Process]:
    """The near and the far one, which is started after it."""
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if LINK in command_of(child.pid)]
