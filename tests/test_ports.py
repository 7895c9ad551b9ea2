"""A port that is given out to a test is its server's alone."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.ports import LOOPBACK, free_port

CHOOSER = """
from support.ports import free_port
print(*(free_port() for _ in range(200)), flush=True)
input()
"""
TESTS = Path(__file__).parent


def test_processes_that_choose_at_once_choose_no_port_twice() -> None:
    command, env = [sys.executable, "-c", CHOOSER], {**os.environ, "PYTHONPATH": str(TESTS)}
    pipe = subprocess.PIPE
    choosers = [subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe) for _ in range(3)]
    given = []
    for chooser in choosers:
        assert chooser.stdout is not None
        given += chooser.stdout.readline().split()
    for chooser in choosers:
        chooser.communicate(b"\n")
    assert len(given) == 600
    assert len(set(given)) == 600


def test_a_port_given_out_is_got_by_those_alone_who_name_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port))
    for _ in range(2):  # a server that starts again gets it again
        with (
            socket.create_server((LOOPBACK, port)) as server,
            socket.create_connection((LOOPBACK, port)) as client,
        ):
            accepted, address = server.accept()
            accepted.close()
            assert address == client.getsockname()
