"""An `Omni` that starts, is closed, and is used by loops and threads."""

import asyncio
import inspect
import os
import threading
from collections.abc import Coroutine
from pathlib import Path

import pytest
from support.gateway.offline import SPOKEN, FakeStages, fake_async_omni, fake_omni
from support.gateway.serving import MODEL, OMNI
from support.waiting import until, wait_until

from omnistage import Answer, AsyncOmni, Closed, Omni, StartFailed, Text
from omnistage.server.offline.loop_thread import LoopThread


def test_a_stage_that_dies_while_it_loads_ends_the_start(tmp_path: Path) -> None:
    stages = FakeStages(tmp_path)

    def launch(name: str, directory: Path) -> object:
        stage = stages.launch(name, directory)
        stages.graph.is_loading.add("talker")
        if name == "code2wav":
            asyncio.get_running_loop().call_later(0.2, stages.graph.stages["talker"].die, "lost")
        return stage

    fake = FakeStages.__new__(FakeStages)
    fake.launch, fake.connector = launch, stages.connector  # type: ignore[method-assign, assignment]
    with pytest.raises(StartFailed, match="stage talker ended while it loaded: lost"):
        fake_omni(fake, OMNI)


def test_a_start_that_is_interrupted_once_all_are_ready_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, began = LoopThread.run, False

    def interrupted(
        thread: LoopThread, work: Coroutine[object, object, object], is_kept: bool = False
    ) -> object:
        nonlocal began
        ended, is_start, began = run(thread, work, is_kept), not began, True
        if is_start:
            raise KeyboardInterrupt
        return ended

    monkeypatch.setattr(LoopThread, "run", interrupted)
    with caplog.at_level("INFO"), pytest.raises(KeyboardInterrupt):
        fake_omni(FakeStages(tmp_path), OMNI)
    assert "all stages have ended" in caplog.text


def test_what_runs_when_it_is_closed_fails(tmp_path: Path) -> None:
    stages, raised = FakeStages(tmp_path), []
    omni = fake_omni(stages, OMNI)

    def ask() -> None:
        try:
            omni.chat("hang")
        except Closed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: bool(stages.graph.running))
    omni.close()
    asking.join(600)
    assert raised
    with pytest.raises(Closed):
        omni.chat("words")
    with pytest.raises(Closed):
        list(omni.stream_chat("words"))
    omni.close()
    assert repr(omni) == f"Omni('{MODEL}', text+audio, closed)"


async def test_it_works_below_a_loop_that_runs(omni: Omni) -> None:
    """As in a notebook, whose cells run inside of one."""
    assert asyncio.get_running_loop().is_running()
    assert omni.chat("words").text == "Hello there"
    assert [type(piece) for piece in omni.stream_chat("words")] == [Text, Text, Text, Answer]


async def test_a_program_with_a_loop_awaits(tmp_path: Path) -> None:
    stages = FakeStages(tmp_path)
    async with fake_async_omni(stages, OMNI) as omni:
        assert repr(omni) == f"AsyncOmni('{MODEL}', text+audio)"
        assert omni.voices == ("chelsie", "ethan")
        both = asyncio.gather(omni.chat("words"), omni.chat("words", modalities=SPOKEN))
        assert [answer.text for answer in await both] == ["Hello there"] * 2
        pieces = [piece async for piece in omni.stream_chat("words")]
        assert [type(piece) for piece in pieces] == [Text, Text, Text, Answer]
        async for _ in omni.stream_chat("endless"):
            break
        await until(lambda: not stages.graph.running)
        asking = asyncio.create_task(omni.chat("hang"))
        await until(lambda: stages.graph.running)
        asking.cancel()
        await until(lambda: not stages.graph.running)
    with pytest.raises(Closed):
        await omni.chat("words")
    with pytest.raises(Closed, match="started before"):
        await omni.start()


def test_several_threads_use_one(omni: Omni, stages: FakeStages) -> None:
    texts: list[str] = []
    asking = [
        threading.Thread(target=lambda: texts.append(omni.chat("wait").text)) for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    wait_until(lambda: stages.graph.num_waiting == 4)
    omni._thread._loop.call_soon_threadsafe(stages.graph.go_on)
    for thread in asking:
        thread.join(600)
    assert texts == ["Hello there"] * 4


def test_it_is_closed_when_nothing_refers_to_it(tmp_path: Path) -> None:
    """Wherever the last reference goes: here, or in the thread of its own loop."""
    for number in range(2):
        (folder := tmp_path / str(number)).mkdir()
        kept = [fake_omni(FakeStages(folder), OMNI)]
        thread, runs = kept[0]._thread, set(Path("/dev/shm").glob(f"omnistage-{os.getpid()}-*"))
        if number == 0:
            kept.clear()
        else:
            thread._loop.call_soon_threadsafe(kept.clear)
        thread._thread.join(600)
        assert not thread._thread.is_alive()
        assert any(not run.exists() for run in runs)


def methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_omni_has_the_methods_of_async_omni_with_their_arguments() -> None:
    assert methods(Omni) == methods(AsyncOmni) - {"start"}
    for name in methods(Omni) - {"model", "modalities", "voices", "sleeping", "generate"}:
        waiting, other = getattr(Omni, name), getattr(AsyncOmni, name)
        assert inspect.signature(waiting).parameters.keys() == (
            inspect.signature(other).parameters.keys()
        )
        assert not inspect.iscoroutinefunction(waiting)
