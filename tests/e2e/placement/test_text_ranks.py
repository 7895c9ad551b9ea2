"""A text stage over HTTP: methods of a user's class on every rank, and adapters of every rank.

`make parallel` says how many ranks it has with OMNISTAGE_SIZES. With one, it repeats what
stages/vllm/test_text.py shows of the stage and server/endpoints/test_admin.py of the gateway.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.models.text_loras import adapted, write_text_lora
from support.models.tiny_text import likeliest
from support.servers.parallel import sizes
from support.servers.server import ADMIN_KEY, TinyServer, running_server
from support.stages.text_stage import ENGINE, LORA, METHODS, NUM_TOKENS, hello
from transformers import AutoTokenizer, Qwen3ForCausalLM

from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

pytestmark = [pytest.mark.engine, pytest.mark.repeat]

TESTS = Path(__file__).parents[2]
KEY = {"authorization": f"Bearer {ADMIN_KEY}"}
NUM_RANKS = math.prod(sizes().values())


@pytest.fixture(scope="module")
def server(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    arguments = {**ENGINE, **LORA, **METHODS, **sizes()}
    tiny = load_graph(GRAPHS / "qwen3_omni_tiny.yaml", str(tiny_text)).stages["thinker"]
    environment = {f"environment.{name}": value for name, value in tiny.environment.items()}
    options = [
        f"--stage=text.{name}={json.dumps(value)}"
        for name, value in {**arguments, **environment}.items()
    ]
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    log = tmp_path_factory.mktemp("log") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with running_server(str(tiny_text), log, "--admin-key", ADMIN_KEY, *options) as running:
            yield running


def rpc(server: TinyServer, method: str, *args: Any, **more: Any) -> httpx.Response:
    body = {"method": method, "args": list(args), **more}
    return httpx.post(f"{server.url}/admin/rpc", json=body, headers=KEY, timeout=600)


def results(server: TinyServer, method: str, *args: Any) -> list[Any]:
    """What a method gives on each rank."""
    answer = rpc(server, method, *args, from_all=True)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["stages"]["text"]["result"]
    return found


def test_a_method_is_called_in_the_process_of_every_rank(server: TinyServer) -> None:
    processes = results(server, "process")
    assert len(set(processes)) == len(processes) == NUM_RANKS
    below = {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}
    assert set(processes) <= below
    assert results(server, "doubled", 21) == [42] * NUM_RANKS
    assert rpc(server, "doubled", 21).json()["stages"]["text"]["result"] == 42


def test_an_exception_names_the_rank_and_the_stage_goes_on(server: TinyServer) -> None:
    last = NUM_RANKS - 1
    refused = rpc(server, "fail_on", last, from_all=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "rpc_failed")
    message = refused.json()["error"]["message"]
    assert "RuntimeError: as it was asked to" in message
    assert f"rank {last}" in message
    assert results(server, "fail_on", NUM_RANKS) == ["fine"] * NUM_RANKS
    assert server.health()["text"]["generation"] == 1


def test_an_adapter_that_is_added_over_http_answers_as_pefts(
    server: TinyServer, tiny_text: Path, tmp_path: Path
) -> None:
    model = Qwen3ForCausalLM.from_pretrained(tiny_text).eval()
    ink = write_text_lora(model, tmp_path / "ink", 1)
    plain = answer(server)
    assert plain == expected(model, tiny_text)
    body = {"lora_name": "ink", "lora_path": str(ink)}
    added = httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, headers=KEY, timeout=600)
    assert added.status_code == 200, added.text
    with_ink = answer(server, model="ink")
    assert with_ink == expected(adapted(model, ink), tiny_text) != plain
    assert answer(server) == plain
    gone = {"lora_name": "ink"}
    removed = httpx.post(
        f"{server.url}/v1/unload_lora_adapter", json=gone, headers=KEY, timeout=600
    )
    assert removed.status_code == 200, removed.text


def answer(server: TinyServer, **more: Any) -> list[int]:
    """The token ids of a greedy answer."""
    body = {**hello(), "return_token_ids": True, **more}
    told = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)
    assert told.status_code == 200, told.text
    ids: list[int] = told.json()["choices"][0]["token_ids"]
    return ids


def expected(model: Any, folder: Path) -> list[int]:
    """What transformers answers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer.apply_chat_template(hello()["messages"], add_generation_prompt=True)
    prompt = given if isinstance(given, list) else given["input_ids"]
    return likeliest(model, prompt, NUM_TOKENS)
