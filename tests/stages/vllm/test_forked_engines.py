"""Engines of tests are forked only from a process that is as a new one would be."""

import multiprocessing
import threading

import pytest
from support import forked_engines
from support.forked_engines import CONTEXT, context, environment, has_one_thread

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("imported_now")]

ASK = """
import os, sys
is_imported = "vllm.v1.worker.cpu_worker" in sys.modules
sys.exit(3 if is_imported and os.environ["VLLM_MEDIA_CONNECTOR"] == "today" else 4)
"""


@pytest.fixture
def imported_now(cpu_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the environment as that of the imports, whatever other tests have left in it."""
    context()
    monkeypatch.setattr(forked_engines, "imported_with", environment())


def test_a_forked_engine_has_its_imports_and_the_environment_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_CONNECTOR", "today")
    assert context() is CONTEXT
    process = CONTEXT.Process(target=exec, args=(ASK,))
    process.start()
    process.join()
    assert process.exitcode == 3


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "A_NEW_NAME"])
def test_an_engine_whose_imports_may_read_another_environment_is_spawned(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert context() is CONTEXT
    monkeypatch.setenv(name, "0")
    assert context() is multiprocessing.get_context("spawn")


def test_a_process_that_forks_is_asked_for_its_threads() -> None:
    """One that a thread holds a lock in would hand the lock on, and nobody to release it."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not has_one_thread(multiprocessing.get_context("spawn"))
    finally:
        end.set()
        thread.join()
    assert has_one_thread(CONTEXT)
