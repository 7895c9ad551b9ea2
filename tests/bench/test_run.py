"""Whole runs against a scripted server, in virtual time: every figure is exact."""

import asyncio

import pytest
from support.bench.fake_openai import MODEL, FakeOpenAI, Script
from support.virtual_time import VirtualTimeLoop, run_virtual

from omnistage.bench.client import ServerError
from omnistage.bench.load import ClosedLoop, Load, OpenLoop, arrivals
from omnistage.bench.metrics import Packet
from omnistage.bench.report import Level, Report, Sample
from omnistage.bench.run import PROBE_S, Plan, probe_lag, run_plan
from omnistage.bench.table import timeline_table
from omnistage.bench.workload import PromptWorkload

TEXT = PromptWorkload(seed=1, prompt_words=20, max_tokens=8)
SPEECH = PromptWorkload(seed=1, prompt_words=20, max_tokens=8, modalities=("text", "audio"))
SPOKEN = ((0.5, 0.4), (1.0, 0.8), (2.25, 0.8))


def run(
    fake: FakeOpenAI,
    workload: PromptWorkload,
    *loads: Load,
    timeout_s: float = 60.0,
    url: str = "http://a",
) -> Report:
    plan = Plan(url, workload, loads, timeout_s)
    return run_virtual(run_plan(plan, lambda level: None, fake.network()))


def level_of(script: Script, workload: PromptWorkload, load: Load | None = None) -> Level:
    (level,) = run(FakeOpenAI(script), workload, load or ClosedLoop(1, 1, 0)).levels
    return level


@pytest.mark.parametrize("dialect", ["openai", "vllm-omni"])
def test_a_spoken_answer_is_timed_in_both_dialects(dialect: str) -> None:
    script = Script(text_s=(0.25, 0.3, 1.5), packets=SPOKEN, dialect=dialect)
    level = level_of(script, SPEECH)
    (sample,) = level.samples
    assert sample.error is None
    assert sample.ttft_s == pytest.approx(0.25)
    assert sample.ttfp_s == pytest.approx(0.5)
    assert sample.e2e_s == pytest.approx(2.25)
    assert sample.audio_s == pytest.approx(2.0)
    assert sample.rtf == pytest.approx(1.125)
    # Dry at 0.9 until 1.0, and at 1.8 until 2.25.
    assert sample.playback == pytest.approx((2, 0.55, 0.45))
    assert sample.text_gaps_s == pytest.approx([0.05, 1.2])
    assert sample.packet_gaps_s == pytest.approx([0.5, 1.25])
    assert (sample.prompt_tokens, sample.text_tokens) == (29, 3)
    assert sample.completion_tokens == (28 if dialect == "openai" else 3)


def test_a_level_s_rates_count_what_was_answered() -> None:
    script = Script(text_s=(0.25, 0.5), packets=((1.0, 1.6),), images=1)
    level = level_of(script, SPEECH, ClosedLoop(2, 6, 0))
    assert level.duration_s == pytest.approx(3.0)
    assert level.rates.requests == pytest.approx(2.0)
    assert level.rates.audio_s == pytest.approx(3.2)
    assert level.rates.text_tokens == pytest.approx(4.0)
    assert level.rates.completion_tokens == pytest.approx(44.0)
    assert level.rates.images == pytest.approx(2.0)
    assert level.metrics["rtf"].p99 == pytest.approx(1.0 / 1.6)
    assert [sample.start_s for sample in level.samples] == pytest.approx([0, 0, 1, 1, 2, 2])


def test_arrivals_are_when_requests_start() -> None:
    level = level_of(Script(), TEXT, OpenLoop(5.0, 12, 0, seed=4))
    starts = [sample.start_s for sample in level.samples]
    assert starts == pytest.approx(arrivals(5.0, 12, seed=4))
    assert [sample.ttft_s for sample in level.samples] == pytest.approx([0.25] * 12)


def test_a_rate_s_requests_in_flight_are_counted() -> None:
    """A server that takes all at once keeps up, however long each takes."""
    level = level_of(Script(text_s=(0.25, 4.0)), TEXT, OpenLoop(5.0, 64, 0, seed=4))
    times = arrivals(5.0, 64, seed=4)
    most = max(sum(at_s - 4.0 < other_s <= at_s for other_s in times) for at_s in times)
    assert level.most_in_flight == most > 8
    assert not level.queue_grew


def test_images_of_vllm_omni_are_counted() -> None:
    (sample,) = level_of(Script(images=2, dialect="vllm-omni"), TEXT).samples
    assert sample.num_images == 2


def test_an_answer_that_is_not_streamed_comes_whole() -> None:
    whole = PromptWorkload(1, 20, 8, overrides=({"stream": None, "stream_options": None},))
    (sample,) = level_of(Script(text_s=(0.5, 1.0), images=2), whole).samples
    assert (sample.error, sample.num_images, sample.text_tokens) == (None, 2, 2)
    assert sample.ttft_s == sample.e2e_s == pytest.approx(1.0)


def test_warm_ups_are_asked_but_do_not_count() -> None:
    fake = FakeOpenAI(Script(failing=frozenset({1})))
    report = run(fake, TEXT, ClosedLoop(2, 4, 3), ClosedLoop(1, 2, 1))
    assert [len(level.samples) for level in report.levels] == [4, 2]
    assert [level.num_failed for level in report.levels] == [0, 0]
    assert report.levels[0].errors == ["HTTP 503: all slots are taken"]
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(prompts) == len(set(prompts)) == 10
    assert report.levels[0].samples[0].start_s == 0.0


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("status", "HTTP 503: all slots are taken"),
        ("event", "a stage died"),
        ("cut", "the answer ended without a finish_reason"),
        ("refuse", "the server sent no chat completion: JSON is malformed"),
        ("noise", "audio is no base64"),
    ],
)
def test_a_failed_request_is_counted_and_left_out(failure: str, message: str) -> None:
    script = Script(failing=frozenset({0, 2}), failure=failure)
    level = level_of(script, TEXT, ClosedLoop(1, 4, 0))
    assert level.num_failed == 2
    assert [error.startswith(message) for error in level.errors] == [True, True]
    assert level.metrics["e2e_s"].mean == pytest.approx(0.5)
    assert level.rates.requests == pytest.approx(2 / level.duration_s)


def test_an_answer_without_the_sound_that_was_asked_for_failed() -> None:
    assert level_of(Script(), SPEECH).errors == ["the answer has no sound"]


def test_packets_without_samples_are_no_sound() -> None:
    (sample,) = level_of(Script(packets=((0.3, 0.0), (0.75, 0.4))), SPEECH).samples
    assert sample.ttfp_s == pytest.approx(0.75)
    assert len(sample.packets) == 1


def test_a_request_starts_when_it_is_written_to_its_connection() -> None:
    plan = Plan("http://a", TEXT, (ClosedLoop(1, 2, 0),), 60.0, model="m")
    network = FakeOpenAI().network(connect_s=1.0)
    (level,) = run_virtual(run_plan(plan, lambda level: None, network)).levels
    assert [one.start_s for one in level.samples] == pytest.approx([1.0, 1.5])
    assert [one.ttft_s for one in level.samples] == pytest.approx([0.25, 0.25])


def test_an_answer_that_takes_too_long_failed() -> None:
    fake = FakeOpenAI(Script(text_s=(0.25, 90.0)))
    (level,) = run(fake, TEXT, ClosedLoop(1, 1, 0), timeout_s=30.0).levels
    assert level.errors == ["no whole answer within 30 s"]
    assert level.samples[0].e2e_s == pytest.approx(30.0)


def test_sound_is_demanded_only_if_the_body_that_was_sent_asks_for_it() -> None:
    fake = FakeOpenAI(Script(dialect="openai", packets=SPOKEN))
    overrides = ({"modalities": ["text"]},)
    (sample,) = (
        run(
            fake,
            PromptWorkload(1, 20, 8, ("text", "audio"), overrides=overrides),
            ClosedLoop(1, 1, 0),
        )
        .levels[0]
        .samples
    )
    assert sample.error is None
    assert sample.packets == ()


def test_a_report_is_read_back_as_it_was_written() -> None:
    script = Script(packets=SPOKEN, failing=frozenset({3}))
    report = run(FakeOpenAI(script), SPEECH, ClosedLoop(2, 4, 1), OpenLoop(2.0, 3, 1, 5))
    again = Report.model_validate_json(report.model_dump_json())
    assert again == report
    assert again.levels[0].metrics == report.levels[0].metrics
    assert (report.model, report.url, report.seed) == (MODEL, "http://a/v1", 1)


def test_an_address_may_have_the_api_s_path() -> None:
    assert run(FakeOpenAI(), TEXT, ClosedLoop(1, 1, 0), url="http://a/v1/").url == "http://a/v1"


def test_what_is_no_address_is_said_at_once() -> None:
    with pytest.raises(ServerError, match="'a:8000' is no address"):
        run(FakeOpenAI(), TEXT, ClosedLoop(1, 1, 0), url="a:8000")
    with pytest.raises(ServerError, match="http://a/b/v1/models: HTTP 404: Not Found"):
        run(FakeOpenAI(), TEXT, ClosedLoop(1, 1, 0), url="http://a/b")


def test_a_client_that_cannot_keep_up_knows_by_how_much() -> None:
    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        lags_s: list[float] = []
        probe = asyncio.create_task(probe_lag(lags_s))
        await asyncio.sleep(PROBE_S * 2.5)
        loop.jump(0.5)  # something blocks
        await asyncio.sleep(PROBE_S * 2)
        probe.cancel()
        return lags_s

    lags_s = run_virtual(run())
    assert max(lags_s) == pytest.approx(0.5 - PROBE_S / 2)
    assert sorted(lags_s)[:-1] == pytest.approx([0.0] * (len(lags_s) - 1))


def test_a_timeline_is_shown_up_to_the_first_sound() -> None:
    marks = {"gateway.received": 0.0, "thinker.first_token": 0.02, "gateway.first_audio": 0.1}
    samples = tuple(
        Sample(
            number=number,
            start_s=0.0,
            end_s=1.0,
            packets=(Packet(0.11, 0.4),),
            timeline_s={**marks, "gateway.first_audio": 0.1 + number / 50, "gateway.later": 2.0},
        )
        for number in range(2)
    )
    level = Level(concurrency=1, duration_s=1.0, client_cpu=0.0, samples=samples)
    assert level.timeline_s == pytest.approx({**marks, "gateway.first_audio": 0.11})
    assert timeline_table(level).row_count == 3
