"""Signs of life: answers of an engine, and compilations by which it is late."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.waiting import until

from omnistage.stages.messages.to_gateway import Alive, Compiling
from omnistage.stages.worker import signs
from omnistage.stages.worker.process.compiles import (
    PLACE,
    CompileCounter,
    begin_counting,
    own_counter,
    read_compiles,
)

SHORT_S = 0.01


class Engine:
    """Answers while it is free."""

    def __init__(self, counter: CompileCounter) -> None:
        self.counter = counter
        self.free = asyncio.Event()
        self.free.set()
        self.is_asked = False
        self.num_looks = 0
        self.signs: list[Alive | Compiling] = []

    async def ask(self) -> None:
        self.is_asked = True
        await self.free.wait()
        self.is_asked = False

    async def silence(self) -> None:
        """Let it be busy until it is asked and nothing more comes of it."""
        self.free.clear()
        await until(lambda: self.is_asked)
        await self.looks(1)
        self.signs.clear()

    async def looks(self, count: int) -> None:
        """Return once it has been looked for compilations so often."""
        before = self.num_looks
        await until(lambda: self.num_looks >= before + count)


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(signs, "INTERVAL_S", SHORT_S)
    monkeypatch.setenv(PLACE, "")
    begin_counting(tmp_path, "text")
    counter = own_counter()
    assert counter is not None
    engine = Engine(counter)

    def look() -> object:
        engine.num_looks += 1
        return read_compiles()

    monkeypatch.setattr(signs, "read_compiles", look)
    sending = asyncio.create_task(signs.send_signs(engine.ask, engine.signs.append))
    await until(lambda: len(engine.signs) >= 2)
    assert set(map(type, engine.signs)) == {Alive}
    yield engine
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_an_engine_that_does_not_answer_shows_no_life(engine: Engine) -> None:
    await engine.silence()
    await engine.looks(20)
    assert engine.signs == []


async def test_an_engine_that_compiles_says_so_until_it_answers(engine: Engine) -> None:
    await engine.silence()
    engine.counter.begin()
    await until(lambda: len(engine.signs) > 3)
    assert set(map(type, engine.signs)) == {Compiling}
    engine.counter.end()
    await engine.looks(2)
    engine.signs.clear()
    await engine.looks(10)
    assert engine.signs == []  # it has compiled, and hangs
    engine.free.set()
    await until(lambda: bool(engine.signs))
    assert engine.signs[0] == Alive()


async def test_one_short_compilation_after_the_other_is_a_sign_too(engine: Engine) -> None:
    await engine.silence()
    for number in range(3):
        engine.counter.begin()
        engine.counter.end()
        await until(lambda most=number: len(engine.signs) > most)  # type: ignore[misc]
    assert engine.signs == [Compiling()] * 3


async def test_an_engine_that_fails_ends_the_signs() -> None:
    async def fail() -> None:
        raise RuntimeError("dead")

    with pytest.raises(RuntimeError, match="dead"):
        await signs.send_signs(fail, lambda sign: None)
