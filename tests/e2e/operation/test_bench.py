"""The load client against a real server: an answer is as long as was asked for."""

import pytest
from support.servers.server import TinyServer

from omnistage.bench.load import ClosedLoop
from omnistage.bench.run import Plan, run_plan
from omnistage.bench.workload import PromptWorkload

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("audio_format", ["pcm16", "wav"])
async def test_frames_and_tokens_are_exact_under_load(
    server: TinyServer, audio_format: str
) -> None:
    workload = PromptWorkload(
        seed=0,
        prompt_words=30,
        max_tokens=12,
        modalities=("text", "audio"),
        audio_format=audio_format,
        frames=20,
    )
    plan = Plan(server.url, workload, (ClosedLoop(3, 6, 0),), timeout_s=120)
    report = await run_plan(plan, lambda level: None)
    (level,) = report.levels
    assert level.errors == []
    assert report.model == server.model
    assert {sample.text_tokens for sample in level.samples} == {12}
    assert {sample.completion_tokens for sample in level.samples} == {32}
    assert len({round(sample.audio_s, 6) for sample in level.samples}) == 1
    assert level.samples[0].audio_s == pytest.approx(20 * 0.08, abs=0.08)
    assert all(sample.prompt_tokens for sample in level.samples)


async def test_text_alone_has_no_sound(server: TinyServer) -> None:
    workload = PromptWorkload(seed=0, prompt_words=30, max_tokens=12, ignore_eos=True)
    plan = Plan(server.url, workload, (ClosedLoop(2, 4, 0),), timeout_s=120)
    (level,) = (await run_plan(plan, lambda level: None)).levels
    assert level.errors == []
    assert {sample.text_tokens for sample in level.samples} == {12}
    assert "ttfp_s" not in level.metrics
