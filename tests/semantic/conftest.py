"""Serves the embedded models once for all tests of meaning: `omnistage up`, on a terminal."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.oracles.meaning import SmallServer, Up
from support.ports import free_port
from support.servers.server import TinyServer, check_that_nothing_is_held
from support.terminal import Terminal

START_S = 300


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Start it with its page, and wait until it is ready; end all of it by Ctrl-C."""
    # What vLLM has found out of model classes stays known: a minute of a processor.
    known = os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm"))
    cache = {
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "VLLM_CACHE_ROOT": known,
    }
    page_port = free_port()
    typed = ["up", "--port", "0", "--page-port", str(page_port)]
    terminal = Terminal([sys.executable, "-m", "omnistage.server.cli", *typed], cache, columns=160)
    try:
        terminal.read_until("what the stages print", START_S)
        terminal.read_until("The page is at", START_S)
        lines = terminal.lines
        (url,) = re.findall(r"Ready after \d+ s: (http://127.0.0.1:\d+)/v1", "\n".join(lines))
        server = TinyServer(url, terminal.process, "small")
        yield Up(server, lines, page_port, terminal)
        check_that_nothing_is_held(server)
        children = psutil.Process(terminal.pid).children(recursive=True)
        assert len(children) >= 5  # four stages and the page
        terminal.press_ctrl_c()
    except BaseException:
        terminal.process.terminate()
        terminal.wait()
        raise
    assert terminal.wait() == 0
    assert not psutil.wait_procs(children, timeout=600)[1]
    assert "Traceback" not in "\n".join(terminal.lines)


@pytest.fixture(scope="session")
def small(up: Up) -> SmallServer:
    """The embedded models in one graph."""
    return SmallServer(up.server)
