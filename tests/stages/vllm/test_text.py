"""A text model as a stage, in a real engine: its answers, and what a CPU's engine does asleep."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors import safe_open
from support.models.text_loras import adapted, write_text_lora
from support.models.tiny_text import write_tiny_text
from support.stages.text_stage import (
    ENGINE,
    LORA,
    METHODS,
    NUM_TOKENS,
    TextHarness,
    hello,
    running_text,
)
from transformers import Qwen3ForCausalLM

from omnistage.stages.device.shared_weights import shared_weights
from omnistage.stages.worker.failure import RequestError

LIMITS = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkpoint of the same shapes."""
    path = tmp_path_factory.mktemp("text") / "other"
    write_tiny_text(path, seed=1)
    return path


@pytest.fixture(scope="module")
def loras(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters by their names."""
    model = Qwen3ForCausalLM.from_pretrained(tiny_text)
    path = tmp_path_factory.mktemp("loras")
    return {
        name: write_text_lora(model, path / name, seed)
        for seed, name in enumerate(("from-the-start", "ink", "oil"))
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def text(
    tiny_text: Path, loras: dict[str, Path], run_directory: Path, cpu_engine: None
) -> AsyncIterator[TextHarness]:
    """With adapters, one of them from the start, and methods of a user's."""
    options = {"lora_modules": {"from-the-start": str(loras["from-the-start"])}}
    async with running_text(tiny_text, run_directory, {**LORA, **METHODS}, options) as harness:
        yield harness


async def test_an_answer_equals_transformers_and_ends_with_its_usage(text: TextHarness) -> None:
    expected = text.expected(hello())
    assert len(set(expected)) > 4
    assert await text.answer("alone", hello()) == expected
    *_, usage = await text.chunks("usage", hello())
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == NUM_TOKENS
    assert text.ready.max_model_len == ENGINE["max_model_len"]


async def test_a_turn_of_a_role_of_the_template_s_own_is_in_the_prompt(text: TextHarness) -> None:
    body = hello()
    body["messages"] = [{"role": "critic", "content": "Hm."}, *body["messages"]]
    assert await text.answer("critic", body) == text.expected(body)


@pytest.mark.parametrize(
    ("body", "begin"), [(hello(), range(1)), ({**LIMITS, "prompt": "Hello"}, range(1, NUM_TOKENS))]
)
async def test_each_chunk_has_the_usage_so_far_for_who_asks(
    body: dict[str, Any], begin: range, text: TextHarness
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await text.chunks("running", {**body, "stream_options": options})
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] in begin
    assert counts[-1] == NUM_TOKENS
    assert last["usage"]["completion_tokens"] == NUM_TOKENS
    cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
    for chunk in chunks:
        assert chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


async def test_many_at_once_answer_as_each_alone(text: TextHarness) -> None:
    bodies = [hello(f"Number {number}? " * (number + 1)) for number in range(8)]
    asked = (text.answer(f"many-{number}", body) for number, body in enumerate(bodies))
    assert await asyncio.gather(*asked) == [text.expected(body) for body in bodies]


async def test_a_prompt_that_does_not_fit_is_refused(text: TextHarness) -> None:
    with pytest.raises(RequestError) as caught:
        await text.chunks("long", hello("long " * 500))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_the_tokens_of_a_conversation_are_those_that_its_chat_begins_with(
    text: TextHarness,
) -> None:
    body = hello("été and <|im_end|>")
    (first, *_) = await text.chunks("begun", body)
    asked = {"messages": body["messages"], "return_token_strs": True}
    (told,) = await text.told("tokens", {"tokenize": asked})
    assert told.token_ids == first["prompt_token_ids"]
    assert told.token_strs is not None
    assert len(told.token_strs) == len(told.token_ids)
    (back,) = await text.told("text", {"detokenize": {"tokens": told.token_ids}})
    assert "été and <|im_end|>" in back.text
    assert back.text.startswith("<|im_start|>")
    (prompt,) = await text.told("prompt", {"tokenize": {"prompt": "été"}})
    assert bytes(prompt.token_ids).decode() == "été"  # a byte is a token


async def test_tokens_that_are_more_than_a_piece_come_in_several(text: TextHarness) -> None:
    words = "word " * 5000
    pieces = await text.told("long text", {"tokenize": {"prompt": words}})
    assert len(pieces) > 1  # more than the context, too
    assert bytes(one for piece in pieces for one in piece.token_ids).decode() == words


async def test_ids_that_are_no_tokens_have_no_text(text: TextHarness) -> None:
    with pytest.raises(RequestError) as caught:
        await text.told("no token", {"detokenize": {"tokens": [1, 1 << 20]}})
    assert (caught.value.param, caught.value.code) == ("tokens", "invalid_value")


async def test_an_answer_keeps_to_a_grammar(text: TextHarness) -> None:
    body = {**hello(), "structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": False}
    chunks = await text.chunks("grammar", body)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) in ("yes", "no")


async def test_an_engine_on_a_cpu_takes_no_command_to_sleep_and_says_why(text: TextHarness) -> None:
    for command in ("sleep", "wake"):
        assert "enable_sleep_mode" in text.ready.commands[command]


async def test_answers_with_adapters_and_without_in_one_batch_are_transformers_and_pefts(
    text: TextHarness, loras: dict[str, Path]
) -> None:
    assert text.ready.loras is not None
    assert [lora.name for lora in text.ready.loras] == ["from-the-start"]
    told = await text.add("ink", loras["ink"])
    assert told[1] == {
        "name": "ink",
        "path": str(loras["ink"]),
        "rank": 4,
        "pinned": False,
        "in_use": 0,
    }
    names = (None, "ink", "from-the-start", None, "ink")
    bodies = [hello() if name is None else {**hello(), "model": name} for name in names]
    asked = (text.answer(f"lora-{number}", body) for number, body in enumerate(bodies))
    answers = await asyncio.gather(*asked)
    assert answers == [expected_with(text, name, loras) for name in names]
    assert len({tuple(answer) for answer in answers}) == 3


def expected_with(text: TextHarness, name: str | None, loras: dict[str, Path]) -> list[int]:
    if name is None:
        return text.expected(hello())
    model = adapted(text.model, loras[name])
    try:
        return text.expected(hello(), model)
    finally:
        text.model = model.unload()


async def test_an_adapter_that_is_removed_is_gone_from_the_engine(
    text: TextHarness, loras: dict[str, Path]
) -> None:
    engine = text.stage._engine
    before = await engine.list_loras()
    await text.add("oil", loras["oil"], pinned=True)
    oil = {**hello(), "model": "oil"}
    answer = await text.answer("oil", oil)
    assert answer == expected_with(text, "oil", loras)
    asking = asyncio.create_task(text.answer("uses-oil", oil))
    await asyncio.sleep(0)
    while not text.stage._adapters.listed[-1].in_use:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(RequestError) as caught:
        await text.obey("remove_lora", name="oil")
    assert (caught.value.status, caught.value.code) == (409, "lora_in_use")
    assert await asking == answer
    loras_left = (await text.obey("remove_lora", name="oil"))["loras"]
    assert "oil" not in [lora["name"] for lora in loras_left]
    assert set(await engine.list_loras()) <= set(before)
    with pytest.raises(RequestError) as caught:
        await text.answer("gone", oil)
    assert (caught.value.status, caught.value.param) == (404, "model")
    await text.add("oil", loras["ink"])  # the same name, and none of the first one's cached prompt
    assert await text.answer("other-oil", oil) == expected_with(text, "ink", loras)
    await text.obey("remove_lora", name="oil")


async def test_adapters_that_vllm_cannot_take_are_refused_and_the_engine_goes_on(
    text: TextHarness, tiny_text: Path, tmp_path: Path
) -> None:
    model = Qwen3ForCausalLM.from_pretrained(tiny_text)
    large = write_text_lora(model, tmp_path / "large", 1, rank=16)
    with pytest.raises(RequestError, match="rank 16; its engine's max_lora_rank is 8"):
        await text.add("large", large)
    dora = write_text_lora(model, tmp_path / "dora", 1)
    config = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(RequestError, match="DoRA"):
        await text.add("dora", dora)
    assert await text.answer("still-there", hello()) == text.expected(hello())


async def test_other_weights_answer_as_their_checkpoint_with_adapters_and_without(
    text: TextHarness, tiny_text: Path, other_folder: Path, loras: dict[str, Path]
) -> None:
    own, inked = {**hello()}, {**hello(), "model": "from-the-start"}
    other = Qwen3ForCausalLM.from_pretrained(other_folder).eval()
    before = await text.answer("before", own)  # its prompt is cached now
    await text.obey("load_weights", path=str(other_folder))
    answers = await asyncio.gather(text.answer("own", own), text.answer("inked", inked))
    expected = text.expected(own, other)
    assert answers[0] == expected != before
    assert answers[1] == text.expected(own, adapted(other, loras["from-the-start"]))
    first, *_ = (await text.obey("list_loras"))["loras"]
    assert first["name"] == "from-the-start"
    with shared_weights(weights_of(tiny_text), tiny_text) as shared:
        await text.obey("load_weights", path=str(shared))
    assert await text.answer("back", own) == before
    assert await text.answer("inked-back", inked) == expected_with(text, "from-the-start", loras)
    with pytest.raises(RequestError, match="no safetensors weights"):
        await text.obey("load_weights", path=str(loras["ink"].parent))
    await text.obey("load_weights", path=str(tiny_text))  # the shared folder is gone
    assert await text.answer("as-before", own) == before


def weights_of(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118
            yield name, opened.get_tensor(name)


async def test_sleep_mode_on_a_cpu_is_refused_by_name(tiny_text: Path, cpu_engine: None) -> None:
    from omnistage.stages.vllm.compat import AsyncLLM
    from omnistage.stages.vllm.engine.engine import make_engine

    with pytest.raises(ValueError, match="Sleep mode is not supported on current platform"):
        make_engine(AsyncLLM, str(tiny_text), {**ENGINE, "enable_sleep_mode": True}, None)


async def test_vllms_metrics_are_kept_unless_they_are_switched_off(
    tiny_text: Path, cpu_engine: None
) -> None:
    from omnistage.stages.vllm.compat import AsyncLLM, PrometheusStatLogger
    from omnistage.stages.vllm.engine.engine import make_engine

    class Told(AsyncLLM):  # type: ignore[misc]
        """Starts no engine."""

        @classmethod
        def from_vllm_config(cls, config: Any, **options: Any) -> Any:
            return options

    def loggers(**more: Any) -> Any:
        told: Any = make_engine(Told, str(tiny_text), {**ENGINE, **more}, None)
        assert told["disable_log_stats"] is True  # those that vLLM would add
        return told["stat_loggers"]

    assert loggers() == [PrometheusStatLogger]
    assert loggers(disable_log_stats=True) == []


async def test_a_real_engine_serves_nobody_while_it_sleeps_and_the_same_answer_afterwards(
    text: TextHarness,
) -> None:
    """vLLM's scheduler sleeps on a CPU too; its weights stay where they are there."""
    engine, expected = text.stage._engine, text.expected(hello())
    assert not await engine.is_sleeping()
    asleep = await text.stage.control("sleep", {"level": 1, "tags": None})
    assert asleep == {"asleep": ["weights", "kv_cache"]}
    assert await engine.is_sleeping()
    await text.stage.alive()
    asking = asyncio.create_task(text.answer("while it sleeps", hello()))
    await asyncio.sleep(0.5)
    assert not asking.done()
    woken = await text.stage.control("wake", {"tags": ["weights"]})
    assert woken == {"asleep": ["kv_cache"]}
    assert await engine.is_sleeping()
    assert await text.stage.control("wake", {"tags": None}) == {"asleep": []}
    assert not await engine.is_sleeping()
    assert await asking == expected
    assert await text.answer("awake", hello()) == expected


async def test_methods_of_a_worker_extension_are_called_between_steps(text: TextHarness) -> None:
    assert text.ready.commands["rpc"] == ""
    asking = asyncio.create_task(text.answer("beside", hello()))
    assert await text.rpc("num_weights") > 10_000  # of its bases too
    assert await text.rpc("doubled", 21) == 42
    assert await text.rpc("process") != os.getpid()
    assert await asking == text.expected(hello())


@pytest.mark.parametrize("name", ["_times", "sleep", "omnistage_load_weights", "not_there"])
async def test_no_other_method_of_a_worker_is_called(name: str, text: TextHarness) -> None:
    with pytest.raises(RequestError, match="of the extension; it has num_weights, ") as caught:
        await text.rpc(name)
    assert (caught.value.status, caught.value.param) == (400, "method")


@pytest.mark.parametrize(
    ("method", "argument", "said"),
    [
        ("fail_on", 0, r"^rank 0: RuntimeError: as it was asked to, \\ud800$"),
        ("doubled", None, "^rank 0: TypeError: "),
        ("result", "none of them", "^rank 0: KeyError: 'none of them'$"),
        ("result", "tensor", "^rank 0: ValueError: its result is no JSON: "),
        ("result", "not a number", "^rank 0: ValueError: its result is no JSON: "),
        ("result", "lone surrogate", "^rank 0: ValueError: its result is no JSON: "),
        ("result", "long", "^rank 0: ValueError: its result has .* bytes of JSON; at most "),
    ],
)
async def test_a_method_that_fails_is_an_error_and_the_engine_goes_on(
    method: str, argument: Any, said: str, text: TextHarness
) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        await text.rpc(method, argument)
    assert (caught.value.status, caught.value.code) == (500, "rpc_failed")
    assert await text.rpc("fail_on", -1) == "fine"
    assert await text.answer("after", hello()) == text.expected(hello())


async def test_a_method_that_takes_too_long_is_told_and_its_late_result_harms_nothing(
    text: TextHarness,
) -> None:
    told = await text.obeyed_within(0.2, "wait", 1.0)
    assert told.error is not None
    assert (told.error.status, told.error.code) == (504, "stage_timeout")
    assert told.error.message == "Stage text: rpc took longer than 0.2 s."
    assert await text.rpc("doubled", 4) == 8  # its own result
    assert (await text.obeyed_within(60, "wait", 0.1)).result == {"result": "waited"}
    assert await text.answer("after-slow", hello()) == text.expected(hello())
