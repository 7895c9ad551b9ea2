"""Control of running vLLM engines: what vLLM offers on a CPU, and clear words for the rest."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import plain
from support.oracles.reference import Reference
from support.servers.server import ADMIN_KEY, TinyServer, assert_same_sound

from omnistage.bench.report import Report

pytestmark = pytest.mark.engine

STAGES = {"thinker", "talker", "code2wav"}
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def admin(server: TinyServer, path: str, /, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return httpx.post(f"{server.url}/admin/{path}", json=body, headers=headers, timeout=600)


def test_an_engine_without_sleep_mode_says_what_it_needs(server: TinyServer) -> None:
    refused = admin(server, "sleep", stages=["thinker", "talker"])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_command")
    assert "enable_sleep_mode" in error["message"]
    assert httpx.get(f"{server.url}/ready").status_code == 200


async def test_every_stage_writes_a_profile_under_its_prefix_in_its_folder(
    server: TinyServer, profiles: Path
) -> None:
    begun = obeyed(server, "profile/start", prefix="hello")
    for name in ("thinker", "talker"):
        assert begun[name] == {"folder": str(profiles / name)}
    await server.ask(HELLO)
    ended = obeyed(server, "profile/stop")
    assert ended["code2wav"] == begun["code2wav"]
    written = {name: stage.get("files", [stage.get("file")]) for name, stage in ended.items()}
    assert written.keys() == STAGES
    for stage, (file,) in written.items():
        path = Path(file)
        assert path.parent == profiles / stage
        assert path.name.startswith(f"hello-{stage}-")
        with gzip.open(file) as opened:
            assert b"aten::" in opened.read()


def test_one_picture_of_all_stages_is_made_while_they_are_loaded(
    server: TinyServer, tmp_path: Path
) -> None:
    """Half a second is enough where all compute within it; a slow machine gets another one."""
    computed: set[str] = set()
    while computed != STAGES:
        said, report, events = loaded_and_profiled(server, tmp_path)
        names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
        computed = {names[event["pid"]] for event in events if event.get("cat") == "cpu_op"}
        assert computed <= STAGES
    for title in ("operators of each stage", "how many stages run operators at once"):
        assert title in said
    (level,) = report.levels
    assert level.profile is not None
    assert {stage.name for stage in level.profile.stages} == STAGES
    for stage in level.profile.stages:
        assert 0 < stage.busy <= 1
        assert stage.steps is not None
        assert stage.kernels
        assert f"{stage.name}: the {len(stage.kernels)} operators of most time" in said
    assert sum(one.share for one in level.profile.shares) == pytest.approx(1)


def loaded_and_profiled(server: TinyServer, folder: Path) -> tuple[str, Report, list[Any]]:
    """Have a busy server profiled by the bench for half a second: what it says, report, trace."""
    trace, report = folder / "all.json.gz", folder / "report.json"
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "serve", server.url]
    command += ["--concurrency", "4", "--requests", "24", "--modalities", "text,audio"]
    command += ["--ignore-eos", "--max-tokens", "48", "--frames", "40", "--profile", str(trace)]
    command += ["--profile-seconds", "0.5", "--json", str(report)]
    environment = {**os.environ, "OMNISTAGE_ADMIN_KEY": ADMIN_KEY, "COLUMNS": "160"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return done.stdout, Report.model_validate_json(report.read_text()), events


def test_a_key_that_is_none_of_the_servers_ends_the_bench_before_it_loads(
    server: TinyServer, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "omnistage.server.cli", "bench", "serve", server.url]
    command += ["--profile", str(tmp_path / "all.json.gz")]
    environment = {**os.environ, "OMNISTAGE_ADMIN_KEY": "sk-other"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 1
    assert "profile/start: HTTP 401" in done.stderr
    assert "--profile needs the server's admin key" in done.stderr
    assert "requests" not in done.stdout


async def test_another_checkpoints_weights_answer_as_that_one_and_the_own_ones_as_before(
    server: TinyServer, tiny_checkpoint: Path, tiny_checkpoints: Callable[[int], Path]
) -> None:
    """The thinker's text is transformers'; the same codes sound as the other vocoder makes them."""
    before, other = await server.ask(HELLO), tiny_checkpoints(1)
    question = plain("hello", ("user", HELLO[0]["content"]))
    expected = Reference(str(other)).answer(question, 16, 1).text
    try:
        obeyed(server, "load_weights", stages=["thinker"], path=str(other))
        assert (await server.ask(HELLO)).text == expected != before.text
        obeyed(server, "load_weights", stages=["thinker"], path=str(tiny_checkpoint))
        obeyed(server, "load_weights", stages=["code2wav"], path=str(other))
        revoiced = await server.ask(HELLO)
        assert (revoiced.text, revoiced.codes.tolist()) == (before.text, before.codes.tolist())
        assert np.abs(revoiced.pcm.astype(int) - before.pcm).max() > 100
    finally:
        for name in ("thinker", "code2wav"):
            obeyed(server, "load_weights", stages=[name], path=str(tiny_checkpoint))
    again = await server.ask(HELLO)
    assert (again.text, again.codes.tolist()) == (before.text, before.codes.tolist())
    assert_same_sound(again.pcm, before.pcm)


async def test_code2wav_sleeps_while_texts_are_answered_and_sounds_the_same_afterwards(
    server: TinyServer,
) -> None:
    before = await server.ask(HELLO)
    for level in (1, 2):
        asleep = obeyed(server, "sleep", stages=["code2wav"], level=level)
        assert asleep == {"code2wav": {"asleep": ["weights", "kv_cache"]}}
        refused = chat(server, server.body(HELLO))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
        text = {"model": server.model, "messages": HELLO, "temperature": 0}
        text["max_completion_tokens"] = 16
        answered = chat(server, text)
        assert answered.json()["choices"][0]["message"]["content"] == before.text
        assert obeyed(server, "wake", stages=["code2wav"]) == {"code2wav": {"asleep": []}}
        assert_same_sound((await server.ask(HELLO)).pcm, before.pcm)


def chat(server: TinyServer, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)


def obeyed(server: TinyServer, path: str, /, **body: Any) -> Any:
    answer = admin(server, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["stages"]


@pytest.mark.parametrize(
    ("stage", "path", "body", "said"),
    [
        ("talker", "load_weights", {}, "tables that it made from its checkpoint"),
        ("talker", "lora/add", {"name": "a", "path": "/a"}, "does not know the command add_lora"),
        ("thinker", "lora/add", {"name": "a", "path": "/a"}, "no enable_lora: true"),
        ("thinker", "load_weights", {"path": "/none"}, "/none is no folder"),
    ],
)
def test_what_a_stage_cannot_is_refused_by_name(
    stage: str, path: str, body: dict[str, Any], said: str, server: TinyServer
) -> None:
    refused = admin(server, path, stages=[stage], **body)
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]
