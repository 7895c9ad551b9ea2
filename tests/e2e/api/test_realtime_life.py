"""The life of sessions on the real server: interruptions, usage, stages and a server that end.

Nothing is made ahead, so that the stages do what answers need and no more.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.prompts import SHORT
from support.faults.chaos import chaos_graph
from support.faults.shared_forwards import pid_of
from support.realtime.barge_in import barge_in
from support.realtime.client import PATH, Talk
from support.servers.engine_tokens import between, check_sums, engine_tokens
from support.servers.server import STOP_S, TinyServer, running_server
from support.waiting import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

pytestmark = pytest.mark.engine

ONE_STAGE = (
    "talker",
    pytest.param("thinker", marks=pytest.mark.repeat),
    pytest.param("code2wav", marks=pytest.mark.repeat),
)
NUM_BARGE_INS = 3
STEP_MS = 100
DRAIN_S = 60  # an answer of any length ends within it, on a busy machine too


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("life") / "log"


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, log: Path) -> Iterator[TinyServer]:
    options = ["--model", str(tiny_checkpoint), "--answer-ahead", "0", "--history-ahead", "0"]
    options += ["--set", f"deadlines.drain_s={DRAIN_S}"]
    with running_server(str(chaos_graph(log.parent, hang_s=600)), log, *options) as running:
        yield running


def session(server: TinyServer) -> Any:
    url = server.url.replace("http", "ws", 1) + PATH
    return connect(url, open_timeout=600, close_timeout=5, compression=None, max_size=None)


@pytest.fixture
def talk(server: TinyServer) -> Iterator[Talk]:
    """Turns by hand."""
    with session(server) as ws:
        talk = Talk(ws)
        talk.until("session.created")
        talk.update(audio={"input": {"turn_detection": None}}, temperature=0)
        yield talk
        talk.order.end()


def test_the_stages_are_idle_before_the_end_of_what_somebody_speaks_into(
    server: TinyServer,
) -> None:
    """How soon, `make realtime-load` measures on a quiet machine."""
    for _ in range(NUM_BARGE_INS):
        while (one := barge_in(server)) is None:
            pass  # the answer was over before that was heard
        assert one.response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert {*one.idle_ms} == {"thinker", "talker", "code2wav"}
    wait_until(lambda: not server.held())


def test_wherever_an_answer_is_cut_the_history_has_a_prefix_of_its_words(
    talk: Talk, server: TinyServer
) -> None:
    """From its end to its start, as nothing that was cut comes back."""
    talk.update(max_output_tokens=24)
    question = talk.write("Tell me of the sea.")
    (item,) = talk.answer()["output"]
    whole = item["content"][0]["transcript"]
    told = talk.told("response.output_audio_transcript.delta")
    assert whole == "".join(event["delta"] for event in told)
    samples = sum(len(one["delta"]) * 3 // 8 for one in talk.told("response.output_audio.delta"))
    ends = range(samples * 1000 // 24_000 // STEP_MS * STEP_MS, -1, -STEP_MS)
    assert len(ends) > 10
    before = whole
    for number, end_ms in enumerate(ends):
        place = {"item_id": item["id"], "content_index": 0, "audio_end_ms": end_ms}
        talk.say("conversation.item.truncate", **place)
        talk.say("conversation.item.retrieve", item_id=item["id"])
        heard = talk.until("conversation.item.retrieved")["item"]["content"][0]["transcript"]
        assert before.startswith(heard)
        if number % (len(ends) // 8) == 0:
            asked = question["content"][0]["text"]
            check_next_prompt(talk, server, asked, heard)
        before = heard
    assert before == ""


def check_next_prompt(talk: Talk, server: TinyServer, asked: str, heard: str) -> None:
    """The model reads as many tokens as a chat with these words has, and answers the same."""
    response = talk.answer(conversation="none", output_modalities=["text"], max_output_tokens=4)
    messages = [{"role": "user", "content": [{"type": "text", "text": asked}]}]
    if heard:
        messages.append({"role": "assistant", "content": [{"type": "text", "text": heard}]})
    body = {"model": server.model, "messages": messages, "temperature": 0}
    body["max_completion_tokens"] = 4
    chat = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600).json()
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    said = chat["choices"][0]["message"]["content"]
    assert response["output"][0]["content"][0]["text"] == said


def test_usage_of_ten_turns_adds_up_to_the_engines(talk: Talk, server: TinyServer) -> None:
    """Ten turns, by text and by audio, one of them out of band."""
    before = engine_tokens(server)
    usages = []
    for number in range(10):
        if number % 3:
            talk.write(f"{number}: the sea?")
        else:
            talk.append(SHORT)
            talk.say("input_audio_buffer.commit")
            talk.until("conversation.item.done")
        modality = "audio" if number % 2 else "text"
        more: dict[str, Any] = {"conversation": "none"} if number == 4 else {}
        response = talk.answer(output_modalities=[modality], max_output_tokens=12, **more)
        assert response["status"] in ("completed", "incomplete"), response
        usages.append(response["usage"])
    used = between(before, engine_tokens(server))
    cached = [one["input_token_details"]["cached_tokens"] for one in usages]
    assert sum(one["input_tokens"] for one in usages) == used["prompt_tokens"]
    assert sum(cached) == used["prompt_tokens_cached"]
    assert sum(cached) > 0
    written = [one["output_token_details"]["text_tokens"] for one in usages]
    assert sum(written) == used["generation_tokens"]
    assert sum(one["input_token_details"]["audio_tokens"] for one in usages) > 0
    spoken = [one["output_token_details"]["audio_tokens"] > 0 for one in usages]
    # One token is the end of an answer without words: there is nothing to speak.
    assert spoken == [number % 2 == 1 and written[number] > 1 for number in range(10)]
    assert any(spoken)
    for one in usages:
        check_sums(one)


def test_usage_of_answers_that_are_cancelled_or_fail_adds_up(
    talk: Talk, server: TinyServer
) -> None:
    talk.write("Tell me of the sea. " * 8)  # blocks of the cache
    talk.append(SHORT)
    talk.say("input_audio_buffer.commit")
    talk.until("conversation.item.done")
    talk.answer(output_modalities=["text"], max_output_tokens=12)
    given = [one["item"]["id"] for one in talk.told("conversation.item.added")]
    while (made := cancelled_answer(talk, server)) is None:
        pass  # it was whole before that was heard
    before, asked_id, cancelled = made
    heard = [
        event
        for event in talk.told("response.output_text.delta")
        if event["response_id"] == cancelled["id"]
    ]
    talk.update(truncation="disabled")
    talk.write("sea " * 2000)
    failed = talk.answer()
    assert failed["status_details"]["error"]["code"] == "context_length_exceeded"
    assert failed["usage"]["total_tokens"] == 0
    wait_until(lambda: not server.held())
    used = between(before, engine_tokens(server))
    usage = cancelled["usage"]
    check_sums(usage)
    assert usage["input_tokens"] == used["prompt_tokens"]
    details = usage["input_token_details"]
    assert details["cached_tokens"] == used["prompt_tokens_cached"] > 0
    # By kinds as that of an answer to the same that ended.
    same = [{"type": "item_reference", "id": one} for one in (*given, asked_id)]
    whole = talk.answer(conversation="none", input=same, output_modalities=["text"])
    kinds = ("text_tokens", "audio_tokens", "image_tokens")
    of_whole = whole["usage"]["input_token_details"]
    assert [details[kind] for kind in kinds] == [of_whole[kind] for kind in kinds]
    assert details["audio_tokens"] > 0
    # All that came is counted; the engine may have made more before it heard of the end.
    num_heard = len(heard)
    assert 0 < num_heard <= usage["output_tokens"] <= used["generation_tokens"]


def cancelled_answer(
    talk: Talk, server: TinyServer
) -> tuple[dict[str, int], str, dict[str, Any]] | None:
    """Cancel an answer in its text: the engine's tokens before, the question, and the answer.

    None if it was whole before; nothing of it is in the conversation then.
    """
    wait_until(lambda: not server.held())
    before, asked = engine_tokens(server), talk.write("0: the sea?")
    talk.say("response.create", response={"output_modalities": ["text"]})
    talk.until("response.output_text.delta")
    talk.say("response.cancel")
    response = talk.until("response.done")["response"]
    if response["status"] == "cancelled":
        return before, asked["id"], response
    for item in (asked, *response["output"]):
        talk.say("conversation.item.delete", item_id=item["id"])
        talk.until("conversation.item.deleted")
    return None


def test_nothing_that_was_said_is_in_the_log(talk: Talk, server: TinyServer, log: Path) -> None:
    talk.update(instructions="Keep the sesame word.")
    talk.write("Open sesame.")
    words = talk.answer(max_output_tokens=24)["output"][0]["content"][0]["transcript"]
    talk.write("sesame " * 3000)
    talk.update(truncation="disabled")
    assert talk.answer()["status"] == "failed"
    wait_until(lambda: not server.held())
    written = log.read_text(errors="replace")
    assert "/v1/realtime" in written
    assert "sesame" not in written
    assert len(words) > 8
    assert words not in written


# Stages that end


def begun(talk: Talk, server: TinyServer) -> None:
    """A turn by hand, which is answered."""
    talk.until("session.created")
    talk.update(audio={"input": {"turn_detection": None}}, temperature=0)
    talk.write("Hello")
    assert talk.answer(max_output_tokens=8)["status"] in ("completed", "incomplete")
    wait_until(lambda: not server.held())


def check_goes_on(talk: Talk, server: TinyServer, num_tokens: int) -> None:
    """The next turn is answered once all stages are there, and its prompt has the history."""
    wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    talk.write("And now?")
    response = talk.answer(max_output_tokens=8)
    assert response["status"] in ("completed", "incomplete"), response
    assert response["usage"]["input_tokens"] > num_tokens
    talk.order.end()


@pytest.mark.parametrize("stage", ONE_STAGE)
def test_a_stage_killed_in_an_answer_fails_it_and_the_next_and_the_session_goes_on(
    server: TinyServer, stage: str
) -> None:
    while not is_killed_in_an_answer(server, stage):
        pass  # the answer was over before: once more in a session that is the same


def is_killed_in_an_answer(server: TinyServer, stage: str) -> bool:
    """Kill a stage once an answer sounds; whether that was before its end, and it failed."""
    with session(server) as ws:
        talk = Talk(ws)
        begun(talk, server)
        num_tokens = talk.events[-1]["response"]["usage"]["input_tokens"]
        generation = server.generations()[stage]
        talk.write("Tell me of the sea.")
        talk.say("response.create")
        talk.until("response.output_audio.delta")
        os.kill(pid_of(server, stage, "worker"), signal.SIGKILL)
        response = talk.until("response.done")["response"]
        is_failed = bool(response["status"] == "failed")
        if is_failed:
            assert response["status_details"]["error"]["code"]
            assert response["output"][0]["status"] == "incomplete"
        talk.write("Are you there?")
        response = talk.answer()  # while the stage loads, or before its death is known
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"]
        wait_until(lambda: server.generations()[stage] == generation + 1)
        check_goes_on(talk, server, num_tokens)
    return is_failed


def test_a_server_that_stops_finishes_the_answer_and_closes_with_1012(server: TinyServer) -> None:
    """The last test of this file: it ends the file's server."""
    with session(server) as ws:
        talk = Talk(ws)
        begun(talk, server)
        talk.write("Tell me of the sea.")
        talk.say("response.create")
        talk.until("response.output_audio.delta")
        server.is_killed = True
        server.process.terminate()
        response = talk.until("response.done")["response"]
        assert response["status"] == "completed"
        with pytest.raises(ConnectionClosed):
            talk.event(STOP_S)
        assert ws.close_code == 1012
        talk.order.end()
    assert server.process.wait(STOP_S) == 0
