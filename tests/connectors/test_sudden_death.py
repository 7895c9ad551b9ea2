"""One end's process is killed at any point: the other reads nothing torn, waits for nothing.

`make repeats` kills it at every instruction.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.channels import victim
from support.channels.notes import NOTES
from support.channels.victim import ADDRESS, OPTIONS, check, check_streamed, pattern

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Connector

STEP = 1 if "OMNISTAGE_REPEATS" in os.environ else 7  # instructions from one death to the next


@pytest.fixture
def connector(run_directory: Path) -> Iterator[Connector]:
    connector = make_connector("shm", run_directory, OPTIONS)
    connector.create(ADDRESS)
    yield connector
    connector.destroy(ADDRESS)


class Victims:
    """Processes that die, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._lines, self._answers = process.stdin, process.stdout

    def start(self, side: str, generation: int, num_instructions: int = 0) -> None:
        """Start the next one."""
        self._lines.write(f"{side} {generation} {num_instructions}\n")

    def end(self) -> str:
        """How it ended, once it has."""
        return self._answers.readline().strip()


@pytest.fixture
def victims(run_directory: Path) -> Iterator[Victims]:
    command = [sys.executable, "-m", "support.channels.victim", str(run_directory)]
    with subprocess.Popen(
        command,
        cwd=Path(victim.__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    ) as process:
        yield Victims(process)
        os.killpg(process.pid, signal.SIGKILL)


def is_readable(file: int) -> bool:
    return bool(select.select([file], [], [], 0)[0])


def test_a_sender_killed_at_every_seventh_instruction_leaves_only_whole_chunks(
    connector: Connector, victims: Victims
) -> None:
    receiver = connector.receiver(ADDRESS, NOTES)
    found = set()
    for generation in count():
        victims.start("send", generation, 1 + generation * STEP)
        end = victims.end()
        assert end in ("killed", "done")
        index = 0
        if generation % 2:  # else nothing of the dead may be seen after the renewal
            while (chunk := receiver.receive()) is not None:
                check(chunk, generation, index)
                index += 1
            found.add(index)
        if end == "done":
            break
        connector.renew(ADDRESS)
        assert is_readable(receiver.fileno())
        assert receiver.receive() is None
        assert receiver.num_requests == 0
        assert not is_readable(receiver.fileno())
    assert found >= set(range(OPTIONS["credit"] + 1))
    receiver.close()


def test_a_receiver_killed_at_every_seventh_instruction_stops_no_sender(
    connector: Connector, victims: Victims
) -> None:
    sender = connector.sender(ADDRESS)
    credits = set()
    for generation in count():
        for index in range(3):
            sender.send(pattern(generation, index))
        victims.start("receive", generation, 1 + generation * STEP)
        end = victims.end()
        assert end in ("killed", "done")
        sender.flush()
        credits.add(sender.credit("a"))
        sender.send(pattern(generation, 3))
        if end == "done":
            break
        connector.renew(ADDRESS)
        assert is_readable(sender.fileno())
        assert sender.flush() == 0
        sender.forget("a")
        assert sender.num_requests == 0
        assert sender.credit("a") == OPTIONS["credit"]
    assert credits >= {0, 1}
    sender.close()


def test_a_sender_killed_while_it_copies_leaves_only_whole_chunks(
    connector: Connector, victims: Victims
) -> None:
    receiver = connector.receiver(ADDRESS, NOTES)
    for generation in range(20):
        victims.start("stream", generation)
        index = 0
        has_ended = False
        while not has_ended:
            assert receiver.wait(600)
            while (chunk := receiver.receive()) is not None:
                check_streamed(chunk, generation, index)
                index += 1
                if index == 1 + generation:
                    os.kill(chunk.message.more["pid"], signal.SIGKILL)
                    assert victims.end() == "killed"
                    has_ended = True
        connector.renew(ADDRESS)
        assert receiver.receive() is None
    receiver.close()
