"""Adapters of an engine: who uses which, how many have a place at once, and what is refused."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora_folders import write_lora_folder

from omnistage.stages.vllm.adapters.adapters import Adapters
from omnistage.stages.worker.failure import RequestError

pytestmark = pytest.mark.asyncio


class FakeEngine:
    """Holds adapters as vLLM does; `refuses` is what it says to a path."""

    def __init__(self, max_loras: int = 2) -> None:
        limits = SimpleNamespace(max_loras=max_loras, max_lora_rank=8)
        self.vllm_config = SimpleNamespace(lora_config=limits)
        self.held: dict[int, Any] = {}
        self.pinned: set[int] = set()
        self.refuses = ""

    async def add_lora(self, request: Any) -> bool:
        self.held[request.lora_int_id] = request
        if self.refuses:
            raise ValueError(self.refuses)
        return True

    async def remove_lora(self, number: int) -> bool:
        self.pinned.discard(number)
        return self.held.pop(number, None) is not None

    async def pin_lora(self, number: int) -> bool:
        assert number in self.held
        self.pinned.add(number)
        return True

    async def list_loras(self) -> set[int]:
        return set(self.held)


class Made:
    """Adapters of a fake engine, and a folder of one."""

    def __init__(self, folder: Path, max_loras: int = 2, has_spare: bool = False) -> None:
        self.engine = FakeEngine(max_loras)
        self.requests: dict[str, Any] = {}
        self.adapters = Adapters(self.engine, "base", {}, self.requests, has_spare)
        self.path = write_lora_folder(folder)

    async def add(self, *names: str, **more: Any) -> None:
        for name in names:
            await self.adapters.add(name, self.path, **more)

    @property
    def names(self) -> list[str]:
        return [lora.name for lora in self.adapters.listed]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


async def refusal(doing: Any) -> tuple[int, str | None]:
    with pytest.raises(RequestError) as caught:
        await doing
    return caught.value.status, caught.value.code


async def test_a_list_tells_name_path_rank_and_pinned(made: Made) -> None:
    await made.add("ink")
    await made.adapters.pin("ink", True)
    (told,) = made.adapters.listed
    assert (told.name, told.path, told.rank, told.pinned) == ("ink", made.path, 2, True)
    assert made.requests.keys() == {"ink"}
    await made.adapters.remove("ink")
    assert not made.adapters.listed
    assert not made.requests
    assert not made.engine.held


async def test_a_name_that_comes_again_is_another_adapter_to_vllms_prefix_cache(made: Made) -> None:
    await made.add("ink")
    first = made.requests["ink"]
    await made.adapters.remove("ink")
    await made.add("ink")
    assert made.requests["ink"].lora_name != first.lora_name
    assert made.requests["ink"].lora_int_id != first.lora_int_id


async def test_what_vllm_refuses_leaves_nothing_behind(made: Made) -> None:
    made.engine.refuses = "vLLM does not yet support DoRA."
    with pytest.raises(RequestError, match="DoRA") as caught:
        await made.add("ink")
    assert caught.value.param == "path"
    assert not made.names
    assert not made.engine.held


async def test_a_name_that_is_taken_is_refused(made: Made) -> None:
    await made.add("ink")
    assert await refusal(made.add("ink")) == (409, None)
    assert await refusal(made.add("base")) == (409, None)
    assert await refusal(made.adapters.remove("oil")) == (400, "invalid_value")


async def test_one_that_requests_use_is_neither_removed_nor_unpinned(made: Made) -> None:
    await made.add("ink", pinned=True)
    async with made.adapters.using("ink"):
        assert made.adapters.listed[0].in_use == 1
        assert await refusal(made.adapters.remove("ink")) == (409, "lora_in_use")
        assert await refusal(made.adapters.pin("ink", False)) == (409, "lora_in_use")
    await made.adapters.pin("ink", False)
    assert not made.engine.pinned
    await made.adapters.remove("ink")
    with pytest.raises(RequestError) as caught:
        async with made.adapters.using("ink"):
            pass
    assert (caught.value.status, caught.value.param) == (404, "model")


async def test_a_request_waits_until_its_adapter_has_a_place(made: Made) -> None:
    await made.add("a", "b", "c")
    await made.adapters.pin("a", True)
    entered = asyncio.Event()

    async def use(name: str) -> None:
        async with made.adapters.using(name):
            entered.set()

    async with made.adapters.using("b"):
        async with asyncio.timeout(600), made.adapters.using("b"), made.adapters.using("a"):
            pass
        waiting = asyncio.create_task(use("c"))
        await asyncio.sleep(0.01)
        assert not entered.is_set()
        assert await refusal(made.adapters.remove("c")) == (409, "lora_in_use")
    await asyncio.wait_for(waiting, 600)
    await made.adapters.remove("c")


async def test_pins_leave_a_place_for_others(made: Made) -> None:
    await made.add("a", "b", pinned=True)
    assert await refusal(made.add("c")) == (409, "lora_limit")
    await made.adapters.pin("b", False)
    await made.add("c")
    assert await refusal(made.adapters.pin("c", True)) == (409, "lora_limit")


async def test_after_new_weights_all_are_there_again_and_pinned(made: Made) -> None:
    await made.add("a")
    await made.add("b", pinned=True)
    before = dict(made.engine.held)
    made.engine.held.clear()
    made.engine.pinned.clear()
    await made.adapters.restore()
    assert made.engine.held == before
    assert made.engine.pinned == {made.requests["b"].lora_int_id}


async def test_an_engine_with_a_spare_place_never_holds_an_adapter_in_it(tmp_path: Path) -> None:
    made = Made(tmp_path, max_loras=3, has_spare=True)
    await made.add("a", "b", "c")

    def held() -> set[str]:
        return {request.lora_name.partition(":")[0] for request in made.engine.held.values()}

    assert held() == {"b", "c"}
    async with made.adapters.using("b"):
        async with made.adapters.using("a"):
            assert held() == {"a", "b"}
        await made.adapters.pin("a", True)
        assert held() == {"a", "b"}
    async with made.adapters.using("c"):
        assert held() == {"a", "c"}
    await made.adapters.restore()
    assert held() == {"a"}
    await made.adapters.remove("a")
    assert not held()
    async with made.adapters.using("b"), made.adapters.using("c"):
        assert held() == {"b", "c"}


async def test_a_wrong_one_of_the_graph_file_is_named(made: Made) -> None:
    with pytest.raises(ValueError, match=r"lora_modules\.oil: /none is no folder"):
        await made.adapters.add_all({"ink": made.path, "oil": "/none"})


async def test_an_engine_without_lora_says_what_it_needs(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.engine.vllm_config.lora_config = None
    assert made.adapters.refusal == "its engine has no enable_lora: true"
    made.engine.held[1] = None
    await made.adapters.restore()  # vLLM would raise
    assert made.engine.held
    with pytest.raises(ValueError, match="enable_lora"):
        await made.adapters.add_all({"ink": made.path})
