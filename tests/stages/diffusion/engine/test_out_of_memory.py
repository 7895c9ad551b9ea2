"""Want of memory, injected: it fails the request that has too little alone, and holds nothing."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.denoising.begun_together import begin_together
from support.stages.stage_outputs import stage_over
from support.tiny_pipelines import TIMEOUT_S, Served, Settings, error, result

from omnistage.stages.diffusion.engine import job as job_module
from omnistage.stages.diffusion.merging import targets
from omnistage.stages.diffusion.merging.targets import Component
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB (injected)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
)
by_error = pytest.mark.parametrize("raised", ERRORS, ids=["cuda", "cpu"])
GUILTY, OTHERS = 5, (0, 10, 15)  # seeds of one prompt, so that all are encoded together
NUM_STEPS, LATE = 20, 15  # by the late step all requests share forwards


def fresh(error: Exception) -> Exception:
    """Without the frames of those that were raised before."""
    return type(error)(str(error))


class Hunger:
    """Raises in a forward for whose rows `fails`; `seen` are the rows of all forwards."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        self.fails: Callable[[torch.Tensor], bool] = lambda rows: False
        self.raised: Exception = ERRORS[0]
        self.held: list[weakref.ref[torch.Tensor]] = []  # what failed forwards had computed
        self.events: list[str] = []
        self.seen: list[torch.Tensor] = []
        self.failed: list[int] = []  # rows
        transformer.get_submodule("img_in").register_forward_pre_hook(self._look)

    def _look(self, module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        (rows,) = args
        assert not any(ref() is not None for ref in self.held), "a failed forward holds memory"
        self.events.append(f"{len(rows)} rows")
        self.seen.append(rows.clone())
        if self.fails(rows):
            computed = torch.zeros(1000)
            self.held.append(weakref.ref(computed))
            self.failed.append(len(rows))
            raise fresh(self.raised)

    def blame(self, step: int) -> None:
        """Raise when the request that was seen alone is at this step again, whoever shares it."""
        guilty = self.seen[step][0]
        self.fails = lambda rows: any(torch.allclose(row, guilty, atol=1e-3) for row in rows)
        self.events.clear()

    def release(self) -> None:
        """In place of torch.cuda.empty_cache."""
        self.events.append("released")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    torch.set_num_threads(1)
    below = Served("qwen-image")
    yield below
    below.engine.close()


@pytest.fixture
def hunger(served: Served, monkeypatch: pytest.MonkeyPatch) -> Hunger:
    made = Hunger(served.pipeline.transformer)
    for module in (targets, job_module):
        monkeypatch.setattr(module, "release_cached", made.release)
    return made


@by_error
def test_only_the_request_that_has_too_little_alone_fails(
    raised: Exception, served: Served, hunger: Hunger
) -> None:
    result(served.ask(Settings(GUILTY, NUM_STEPS)))
    hunger.blame(LATE)
    hunger.raised = raised
    expected = {seed: served.expected(Settings(seed, NUM_STEPS)) for seed in OTHERS}
    begin_together(served.engine, 1 + len(OTHERS))
    jobs = {seed: served.ask(Settings(seed, NUM_STEPS)) for seed in (GUILTY, *OTHERS)}
    with pytest.raises(torch.OutOfMemoryError) as caught:
        jobs[GUILTY].result.result(TIMEOUT_S)
    assert str(raised) in str(caught.value)
    for seed in OTHERS:
        assert error(result(jobs[seed]), expected[seed]) < 1e-5
    together, alone = hunger.failed
    assert together > alone == 1
    again = served.ask(Settings(OTHERS[0], NUM_STEPS))
    assert error(result(again), expected[OTHERS[0]]) < 1e-5


def test_memory_is_given_back_before_each_is_tried_alone(served: Served, hunger: Hunger) -> None:
    hunger.fails = lambda rows: len(rows) > 1
    settings = [Settings(seed, NUM_STEPS) for seed in (GUILTY, *OTHERS)]
    expected = [served.expected(one) for one in settings]
    begin_together(served.engine, len(settings))
    jobs = [served.ask(one) for one in settings]
    for job, images in zip(jobs, expected, strict=True):
        assert error(result(job), images) < 1e-5
    batches = [
        (number, int(event.split()[0]))
        for number, event in enumerate(hunger.events)
        if event not in ("1 rows", "released")
    ]
    assert batches
    for number, num_rows in batches:
        after = hunger.events[number + 1 : number + 2 + num_rows]
        assert after == ["released", *["1 rows"] * num_rows]
    assert hunger.events.count("released") == len(batches) == len(hunger.held)


def test_the_failure_of_a_request_holds_none_of_its_memory(served: Served, hunger: Hunger) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def decode_a_preview(pipeline: Any, step: int, time: Any, tensors: Any) -> Any:
        computed = torch.zeros(1000)
        held.append(weakref.ref(computed))
        raise fresh(ERRORS[0])

    job = served.ask(Settings(0), callback_on_step_end=decode_a_preview)
    failure = job.result.exception(TIMEOUT_S)
    assert isinstance(failure, torch.OutOfMemoryError)
    gc.collect()
    assert [ref() for ref in held] == [None]
    assert hunger.events[-1] == "released"


def test_a_trial_that_has_too_little_memory_decides_nothing() -> None:
    """Whether a decoder's calls may be merged is tried again, with smaller ones perhaps."""
    rows: list[int] = []

    def decode(latents: torch.Tensor) -> torch.Tensor:
        rows.append(len(latents))
        if len(latents) > 1 and latents.shape[1] > 4:
            raise torch.OutOfMemoryError("injected")
        return latents * 2

    component = Component("vae.decode", decode, may_merge=True)

    def run(width: int) -> list[Any]:
        calls = [component.call((torch.full((1, width), float(n)),), {}) for n in range(2)]
        assert component.may_join(*calls)
        return [one.value for one in targets.outcomes(calls)]

    for width, num_calls in ((8, [1, 1, 2]), (4, [1, 1, 2]), (4, [2])):
        rows.clear()
        assert [one[0, 0].item() for one in run(width)] == [0.0, 2.0]
        assert rows == num_calls


async def test_its_client_is_told_what_happened(
    tiny_qwen_image: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.set_num_threads(1)
    stage, outputs = stage_over(tiny_qwen_image, height=32, width=32)
    await stage.start()
    hunger = Hunger(stage._made.loaded.pipeline.transformer)

    def ask(name: str, seed: int) -> "asyncio.Task[None]":
        body = {"prompt": "a cat", "height": 32, "width": 32, "num_inference_steps": NUM_STEPS}
        request = Request(Draw(body), ["image"], seed=seed)
        return asyncio.create_task(stage.serve(Opened(name, request)))

    await ask("before", GUILTY)
    hunger.blame(LATE)
    begin_together(stage._made.engine, 3)
    tasks = [ask(f"request {seed}", seed) for seed in (0, GUILTY, 10)]
    fine, failed, good = await asyncio.gather(*tasks, return_exceptions=True)
    assert (fine, good) == (None, None)
    assert len(outputs.pixels("request 0")) == len(outputs.pixels("request 10")) == 1
    assert isinstance(failed, RequestError)
    assert (failed.status, failed.type, failed.code) == (507, "server_error", "out_of_memory")
    assert failed.message.startswith("Stage dit ran out of memory with this request alone")
    assert "request request 5: CUDA out of memory. Tried to allocate 9.00 GiB" in caplog.text
    await stage.alive()
    await stage.close()
