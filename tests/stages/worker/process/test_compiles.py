"""Compilations that a stage's processes count, and what their stage reads of them."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omnistage.stages.worker.process.compiles import (
    PLACE,
    CompileCounter,
    Compiles,
    begin_counting,
    own_counter,
    read_compiles,
)


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    monkeypatch.setenv(PLACE, "")
    begin_counting(tmp_path, "text")
    counter = own_counter()
    assert counter is not None
    return counter


def test_one_runs_from_its_begin_to_its_end(counter: CompileCounter) -> None:
    assert read_compiles() == Compiles()
    counter.begin()
    assert read_compiles().is_running
    counter.end()
    assert read_compiles() == Compiles(1, 1)
    assert not read_compiles().is_running


def test_every_thread_is_counted(counter: CompileCounter) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(200):
            pool.submit(counter.begin)
            pool.submit(counter.end)
    assert read_compiles() == Compiles(200, 200)


def test_a_forked_process_counts_its_own(counter: CompileCounter) -> None:
    counter.begin()  # it goes on in the parent alone
    child = os.fork()
    if not child:
        counter.begin()
        counter.end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read_compiles() == Compiles(2, 1)
    counter.end()
    assert not read_compiles().is_running


def test_what_a_killed_process_had_begun_is_forgotten_with_the_next_generation(
    counter: CompileCounter, tmp_path: Path
) -> None:
    counter.begin()
    begin_counting(tmp_path, "text")
    assert read_compiles() == Compiles()


def test_a_process_of_no_stage_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    assert own_counter() is None
    assert read_compiles() == Compiles()


def test_a_run_directory_that_is_gone_does_not_hurt(
    counter: CompileCounter, tmp_path: Path
) -> None:
    tmp_path.rmdir()
    counter.begin()
    counter.end()
    assert read_compiles() == Compiles()
