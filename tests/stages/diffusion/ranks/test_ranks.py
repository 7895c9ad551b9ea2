"""What ranks do besides pictures: commands, failures, deaths."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError
from multiprocessing import resource_tracker
from pathlib import Path
from queue import Empty
from threading import Event
from typing import Any

import pytest
import torch
from support.denoising.spread import EXTENSION, TOGETHER, Spread, check_pictures, spread_over_ranks
from support.models.loras import write_lora
from support.tiny_pipelines import TIMEOUT_S, Settings, error, made, quiet, result

from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.ranks.peers import RankError
from omnistage.stages.worker.failure import RequestError


@pytest.fixture(scope="module", autouse=True)
def _tracker() -> None:
    """What Python starts once for all processes of a program."""
    resource_tracker.ensure_running()


# Before there is any other group: a process is in one


@pytest.mark.parametrize(
    ("extension", "problem", "says"),
    [
        ("Forgetful", ValueError, "FluxTransformer2DModel comes to another result over 2 ranks"),
        ("Unwilling", RankError, "rank 1: RuntimeError: not today"),
    ],
)
def test_ranks_that_cannot_work_are_refused_at_start(
    extension: str,
    problem: type[Exception],
    says: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = f"{EXTENSION}.{extension}"
    engine: dict[str, Any] = {"parallel": {"ulysses": 2}, "worker_extension_cls": path}
    with (
        pytest.raises(problem, match=says),
        spread_over_ranks("flux", tmp_path_factory, **engine),
    ):
        pass


def test_a_rank_that_cannot_spread_its_denoiser_ends_a_start_in_which_others_wait_for_it(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{EXTENSION}.Incapable"
    engine: dict[str, Any] = {"parallel": {"tensor": 2}, "worker_extension_cls": path}
    with (
        pytest.raises(
            RankError, match=r"rank 1: ValueError: .*2 ranks do not divide 1 attention heads"
        ),
        spread_over_ranks("flux", tmp_path_factory, 0.5, **engine),
    ):
        pass
    caplog.clear()  # its tracebacks hold the group


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    with spread_over_ranks("flux", tmp_path_factory, parallel={"ulysses": 2}) as spread:
        yield spread


def test_pictures_of_flux(flux: Spread) -> None:
    check_pictures(flux)


async def test_a_method_of_the_extension_on_all_ranks(flux: Spread) -> None:
    assert await flux.rpc("process") == os.getpid()
    processes = await flux.rpc("process", from_all=True)
    assert processes == [os.getpid(), flux.ranks.peers.processes[1].pid]
    assert await flux.rpc("process", reply=False) is None
    for rank in (0, 1):
        with pytest.raises(RequestError, match=rf"rank {rank}: RuntimeError: as it was told"):
            await flux.rpc("fail_on", rank)
    assert await flux.rpc("fail_on", 2) == "fine"
    with pytest.raises(RequestError, match="no method 'run' of the extension; it has num_weights"):
        await flux.rpc("run")


async def test_adapters_are_on_all_ranks(flux: Spread, tmp_path: Path) -> None:
    settings = Settings(1, 3)
    plain = flux.expected(settings)
    file = write_lora(make_tiny("flux"), tmp_path / "ink", 1)
    inked = quiet(make_tiny("flux"))
    inked.load_lora_weights(file.parent, weight_name=file.name, adapter_name="ink")
    with torch.inference_mode():
        expected = made(inked(**settings.arguments("flux")))
    assert error(expected, plain) > 1e-3
    await flux.obey("add_lora", name="ink", path=str(file), weight_name=None, pinned=False)
    jobs = [flux.ask(settings, lora=[{"name": "ink"}]), flux.ask(settings)]
    for job, pictures in zip(jobs, (expected, plain), strict=True):
        assert error(result(job), pictures) < 1e-5
    await flux.obey("remove_lora", name="ink")
    assert error(result(flux.ask(settings)), plain) < 1e-5
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    with pytest.raises(RequestError, match="is no LoRA for this pipeline"):
        await flux.obey("add_lora", name="b", path=str(broken), weight_name=None, pinned=False)


async def test_a_lora_that_one_rank_cannot_take_is_on_none(flux: Spread, tmp_path: Path) -> None:
    """The ranks have no text encoder."""
    file = write_lora(make_tiny("flux"), tmp_path, 1, "text_encoder", ("q_proj", "v_proj"))
    with pytest.raises(RequestError, match="rank 1: "):
        await flux.obey("add_lora", name="words", path=str(file), weight_name=None, pinned=False)
    assert await flux.obey("list_loras") == {"loras": []}
    assert error(result(flux.ask(TOGETHER[0])), flux.expected(TOGETHER[0])) < 1e-5


@pytest.mark.parametrize("level", [1, 2])
async def test_all_ranks_sleep_and_wake(flux: Spread, level: int) -> None:
    asleep = await flux.obey("sleep", level=level, tags=None)
    assert "transformer" in asleep["asleep"]
    assert (await flux.rpc("asleep", from_all=True))[1] == ["transformer"]
    if level == 2:
        assert await flux.rpc("num_weights", from_all=True) == [0, 0]
    assert await flux.obey("wake", tags=None) == {"asleep": []}
    assert (await flux.rpc("asleep", from_all=True))[1] == []
    assert error(result(flux.ask(TOGETHER[1])), flux.expected(TOGETHER[1])) < 1e-5


async def test_other_weights_are_on_all_ranks(flux: Spread, tmp_path: Path) -> None:
    write_tiny("flux", tmp_path / "other", seed=7)
    other = quiet(make_tiny("flux", 7))
    with torch.inference_mode():
        expected = made(other(**TOGETHER[2].arguments("flux")))
    await flux.obey("load_weights", path=str(tmp_path / "other"))
    assert error(result(flux.ask(TOGETHER[2])), expected) < 1e-5
    with pytest.raises(RequestError, match="cannot be read"):
        await flux.obey("load_weights", path=str(tmp_path / "nowhere"))
    await flux.obey("load_weights", path=str(flux.folder))
    assert error(result(flux.ask(TOGETHER[2])), flux.expected(TOGETHER[2])) < 1e-5


def test_a_request_cancelled_in_the_middle_of_a_call_leaves_no_rank_behind(flux: Spread) -> None:
    begun, cancelled = Event(), Event()

    def wait(module: Any, args: Any) -> None:
        begun.set()
        assert cancelled.wait(TIMEOUT_S)

    transformer: Any = flux.ranks.denoisers["transformer"]
    with transformer.single_transformer_blocks[0].register_forward_pre_hook(wait):
        job = flux.engine.submit(**Settings(0, 500).arguments("flux"))
        assert begun.wait(TIMEOUT_S)
        flux.engine.cancel(job)
        cancelled.set()
        with pytest.raises(CancelledError):
            job.result.result(TIMEOUT_S)
    assert error(result(flux.ask(TOGETHER[0])), flux.expected(TOGETHER[0])) < 1e-5
    assert flux.failures.empty()


async def test_a_call_that_fails_on_all_ranks_fails_its_request_alone(flux: Spread) -> None:
    calls = ((), {"hidden_states": "no tensor"})
    with pytest.raises(Exception, match="str") as failure:
        await flux_run(flux, calls)
    assert not isinstance(failure.value, RankError)
    assert error(result(flux.ask(TOGETHER[0])), flux.expected(TOGETHER[0])) < 1e-5
    assert flux.failures.empty()


async def flux_run(flux: Spread, call: Any) -> None:
    """A call of the denoiser between two steps."""
    flux.engine.between_steps(lambda: flux.ranks.run("transformer", [call])).result(TIMEOUT_S)


async def test_a_call_that_there_is_no_room_to_send_reaches_no_rank(
    flux: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr("omnistage.stages.diffusion.ranks.lockstep.as_bytes", full)
        with pytest.raises(torch.OutOfMemoryError, match="full"):
            result(flux.ask(TOGETHER[0]))
    assert await flux.rpc("fail_on", 2, from_all=True) == ["fine", "fine"]
    larger = Settings(1, 3, 3.0, height=48)
    assert error(result(flux.ask(larger)), flux.expected(larger)) < 1e-5
    assert flux.failures.empty()


async def test_a_result_that_cannot_be_sent_is_an_error_of_its_rank(flux: Spread) -> None:
    with pytest.raises(RequestError, match=r"rank 1: RuntimeError: .*sparse tensors"):
        await flux.rpc("sparse", from_all=True)
    assert await flux.rpc("fail_on", 2, from_all=True) == ["fine", "fine"]
    assert flux.failures.empty()


def test_replies_that_nobody_waits_for_do_not_fill_the_pipe(flux: Spread) -> None:
    def many() -> None:
        for _ in range(5000):
            flux.ranks.rpc("process", reply=False)

    flux.engine.between_steps(many).result(TIMEOUT_S)


async def test_a_call_that_fails_on_one_rank_behind_the_last_collective_ends_the_stage(
    flux: Spread,
) -> None:
    """As under NCCL, where the host of a rank does not wait for others in a call."""
    await flux.rpc("fail_behind_next_call_on", 1)
    with pytest.raises(RankError, match="rank 1: a call failed there alone: RuntimeError: as it"):
        result(flux.ask(TOGETHER[0]))
    assert flux.failures.get(timeout=600).startswith("rank 1: a call failed there alone")
    assert await flux.rpc("fail_on", 2, from_all=True) == ["fine", "fine"]
    assert error(result(flux.ask(TOGETHER[0])), flux.expected(TOGETHER[0])) < 1e-5


def test_a_dead_rank_is_known_at_once_and_fails_what_runs(flux: Spread) -> None:
    """The last test of these ranks."""
    begun, killed = Event(), Event()

    def wait(module: Any, args: Any) -> None:
        begun.set()
        assert killed.wait(TIMEOUT_S)

    transformer: Any = flux.ranks.denoisers["transformer"]
    process = flux.ranks.peers.processes[1]
    assert process.pid is not None
    with transformer.single_transformer_blocks[0].register_forward_pre_hook(wait):
        job = flux.ask(Settings(0))
        assert begun.wait(TIMEOUT_S)
        os.kill(process.pid, signal.SIGKILL)
        assert flux.failures.get(timeout=600) == "rank 1 has died (exit code -9)"
        killed.set()
        with pytest.raises(RuntimeError):
            job.result.result(600)
    with pytest.raises(RankError, match="rank 1 has died"):
        flux.ask(Settings(0)).result.result(600)
    with pytest.raises(Empty):
        flux.failures.get_nowait()
