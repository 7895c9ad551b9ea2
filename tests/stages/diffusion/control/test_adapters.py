"""LoRA adapters: requests with different ones at once, and which are loaded."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
import torch
from support.denoising.begun_together import begin_together, gate_steps
from support.denoising.controlled import Controlled
from support.models.loras import write_lora
from support.tiny_pipelines import TIMEOUT_S, error, result

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.engine.job import Job
from omnistage.stages.worker.failure import RequestError

Make = Callable[..., Controlled]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Three LoRAs of each pipeline."""
    folder = tmp_path_factory.mktemp("loras")
    return {
        name: [write_lora(make_tiny(name), folder / f"{name}-{i}", i) for i in range(3)]
        for name in ("qwen-image", "flux")
    }


def with_lora(one: Controlled, seed: int, files: list[Path], scales: list[float]) -> torch.Tensor:
    """The bare pipeline's picture with these adapters."""
    for index, file in enumerate(files):
        one.bare.load_lora_weights(file.parent, weight_name=file.name, adapter_name=f"a{index}")
    one.bare.set_adapters([f"a{index}" for index in range(len(files))], scales)
    made = one.expected(seed)
    one.bare.unload_lora_weights()
    return made


def add(one: Controlled, name: str, path: Path, **more: Any) -> Any:
    arguments = {"weight_name": None, "pinned": False, **more}
    return one.obey("add_lora", name=name, path=str(path), **arguments)["loras"]


def lora(*names: str, scale: float = 1.0) -> dict[str, Any]:
    return {"lora": [{"name": name, "scale": scale} for name in names]}


@pytest.mark.parametrize("name", ["qwen-image", "flux"])
def test_different_adapters_at_once_equal_the_bare_pipeline_with_each(
    name: str, controlled: Make, files: dict[str, list[Path]]
) -> None:
    one = controlled(name)
    ink, oil, _ = files[name]
    add(one, "ink", ink)
    add(one, "oil", oil)
    expected = [
        one.expected(1),
        with_lora(one, 2, [ink], [1.0]),
        with_lora(one, 3, [oil], [0.5]),
        with_lora(one, 4, [ink, oil], [0.7, 0.7]),
        one.expected(5),
        with_lora(one, 6, [ink], [1.0]),
    ]
    bodies = [{}, lora("ink"), lora("oil", scale=0.5), lora("ink", "oil", scale=0.7), {}]
    bodies.append(lora("ink"))
    begin_together(one.engine, len(bodies))
    jobs = [one.ask(body, seed) for seed, body in enumerate(bodies, 1)]
    for job, wanted in zip(jobs, expected, strict=True):
        assert error(result(job), wanted) < 1e-5
    assert error(one.expected(2), expected[1]) > 1e-3
    assert one.engine.batch_sizes[2] >= 4


def test_adding_while_another_request_runs_changes_nothing_for_it(
    controlled: Make, files: dict[str, list[Path]]
) -> None:
    one = controlled("qwen-image")
    is_in_between, is_added = threading.Event(), threading.Event()

    def may_step(waiting: list[Job]) -> bool:
        if one.engine.batch_sizes[1] < 3:
            return True
        is_in_between.set()
        return is_added.is_set()

    gate_steps(one.engine, may_step)
    job = one.ask({}, 1)
    assert is_in_between.wait(TIMEOUT_S)
    add(one, "ink", files["qwen-image"][0])
    assert not job.result.done()
    is_added.set()
    one.engine.ping()
    assert error(result(job), one.expected(1)) < 1e-5


def test_an_unknown_adapter_is_named(controlled: Make, files: dict[str, list[Path]]) -> None:
    one = controlled("qwen-image")
    add(one, "ink", files["qwen-image"][0])
    with pytest.raises(RequestError, match="loaded: ink") as caught:
        one.ask(lora("ink", "oil"), 1)
    assert (caught.value.status, caught.value.param) == (400, "lora[1].name")
    assert one.obey("list_loras")["loras"][0]["in_use"] == 0


def test_the_one_used_longest_ago_goes_first_unless_pinned_or_in_use(
    controlled: Make, files: dict[str, list[Path]]
) -> None:
    one = controlled("qwen-image", max_loras=2)
    ink, oil, chalk = files["qwen-image"]
    add(one, "ink", ink)
    add(one, "oil", oil)
    result(one.ask(lora("ink"), 1))
    assert [it["name"] for it in add(one, "chalk", chalk)] == ["chalk", "ink"]
    one.obey("pin_lora", name="ink", pinned=True)
    is_over = threading.Event()
    gate_steps(one.engine, lambda waiting: is_over.is_set())
    job = one.ask(lora("chalk"), 1)
    with pytest.raises(RequestError, match="all 2 LoRAs are pinned or in use") as caught:
        add(one, "oil", oil)
    assert caught.value.status == 409
    with pytest.raises(RequestError, match="1 requests use the LoRA 'chalk'"):
        one.obey("remove_lora", name="chalk")
    one.engine.cancel(job)
    with pytest.raises(CancelledError):
        job.result.result(TIMEOUT_S)
    is_over.set()
    assert one.obey("remove_lora", name="chalk")["loras"] == [
        {"name": "ink", "path": str(ink), "pinned": True, "in_use": 0}
    ]
    assert one.pipeline.get_list_adapters() == {"transformer": ["lora0"]}
    assert error(result(one.ask({}, 2)), one.expected(2)) < 1e-5


def test_what_is_no_lora_is_refused_and_leaves_nothing(
    controlled: Make, files: dict[str, list[Path]], tmp_path: Path
) -> None:
    one = controlled("qwen-image")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no tensors")
    for path, weight_name, param in [
        (tmp_path / "none", None, "path"),
        (broken, None, "path"),
        (broken, "broken.safetensors", "weight_name"),
        (tmp_path, "other.safetensors", "weight_name"),
        (files["flux"][0], None, "path"),
    ]:
        with pytest.raises(RequestError) as caught:
            add(one, "ink", path, weight_name=weight_name)
        assert (caught.value.status, caught.value.param) == (400, param)
    assert one.obey("list_loras") == {"loras": []}
    assert not any(one.pipeline.get_list_adapters().values())
    assert error(result(one.ask({}, 1)), one.expected(1)) < 1e-5


def test_a_name_is_there_once(controlled: Make, files: dict[str, list[Path]]) -> None:
    one = controlled("flux")
    add(one, "ink", files["flux"][0].parent)
    with pytest.raises(RequestError, match="there already") as caught:
        add(one, "ink", files["flux"][1])
    assert caught.value.status == 409


def test_an_adapter_of_a_text_encoder_changes_its_own_requests_only(
    controlled: Make, tmp_path: Path
) -> None:
    one = controlled("flux", embedding_cache_mb=1)
    targets = ["q_proj", "v_proj"]
    file = write_lora(make_tiny("flux"), tmp_path, 1, part="text_encoder", targets=targets)
    add(one, "words", file)
    expected = [one.expected(1), with_lora(one, 1, [file], [1.0]), with_lora(one, 1, [file], [0.5])]
    assert error(expected[0], expected[1]) > 1e-4
    bodies = [{}, lora("words"), lora("words", scale=0.5)]
    for _ in range(2):
        jobs = [one.ask(body, 1) for body in bodies]
        for job, wanted in zip(jobs, expected, strict=True):
            assert error(result(job), wanted) < 1e-5
    assert one.obey("count_cache")["embeddings"]["hits"] >= 6
