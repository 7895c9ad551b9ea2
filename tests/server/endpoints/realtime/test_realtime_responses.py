"""Responses of a session: cancelled, out of band, failed, shortened."""

from typing import Any

import httpx
import pytest
from support.fakes import stages as fake_stages
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.realtime.client import Talk, talking
from support.realtime.talk import MANUAL, error_of, last_messages
from support.waiting import wait_until

from omnistage.server.realtime.answering import answers


def test_a_second_response_of_the_conversation_is_refused(talk: Talk) -> None:
    talk.write("endless")
    talk.say("response.create")
    response_id = talk.until("response.created")["response"]["id"]
    talk.say("response.create", event_id="second")
    error = error_of(talk)
    assert error["code"] == "conversation_already_has_active_response"
    assert (error["event_id"], response_id in error["message"]) == ("second", True)
    talk.say("response.cancel")
    assert talk.until("response.done")["response"]["id"] == response_id


def test_a_cancelled_response_frees_its_stages(talk: Talk, gateway: RunningGateway) -> None:
    talk.write("endless")
    talk.say("response.create")
    talk.until("response.output_audio.delta")
    talk.say("response.cancel")
    response = talk.until("response.done")["response"]
    details = {"type": "cancelled", "reason": "client_cancelled"}
    assert (response["status"], response["status_details"]) == ("cancelled", details)
    assert response["output"][0]["status"] == "incomplete"
    gateway.wait_until_idle()
    assert talk.is_quiet()
    talk.write("Hello")
    assert talk.answer()["status"] == "completed"


def test_responses_out_of_band_leave_the_conversation_alone(
    talk: Talk, gateway: RunningGateway
) -> None:
    talk.write("Hello", id="item_1")
    reference = {"type": "item_reference", "id": "item_1"}
    own = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Own"}]}
    response = talk.answer(conversation="none", input=[reference, own], metadata={"a": "b"})
    assert (response["conversation_id"], response["metadata"]) == (None, {"a": "b"})
    assert [one["content"][0]["text"] for one in last_messages(gateway)] == ["Hello", "Own"]
    assert talk.order.items == ["item_1"]
    talk.answer(conversation="none", input=[], instructions="Greet.")
    assert [one["role"] for one in last_messages(gateway)] == ["system"]


def test_out_of_band_responses_are_bounded_and_cancelled_by_id(talk: Talk) -> None:
    content = [{"type": "input_text", "text": "endless"}]
    given = [{"type": "message", "role": "user", "content": content}]
    for _ in range(answers.MAX_OUT_OF_BAND + 1):
        talk.say("response.create", response={"conversation": "none", "input": given})
    assert error_of(talk)["code"] == "too_many_responses"
    talk.answer()  # one of the conversation beside them
    begun = [one["response"]["id"] for one in talk.told("response.created")]
    for response_id in begun[: answers.MAX_OUT_OF_BAND]:
        talk.say("response.cancel", response_id=response_id)
        while talk.until("response.done")["response"]["id"] != response_id:
            pass


@pytest.mark.parametrize(("script", "begins"), [("refuse", False), ("fail later", True)])
def test_a_failed_response_ends_and_the_session_goes_on(
    talk: Talk, script: str, begins: bool
) -> None:
    talk.write(script)
    response = talk.answer()
    assert response["status"] == "failed"
    error = response["status_details"]["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"]
    assert bool(response["output"]) == begins
    talk.write("Hello")
    assert talk.answer()["status"] == "completed"


@pytest.mark.parametrize(
    ("truncation", "lengths"),
    [
        ("auto", [7, 5, 3, 1]),
        ("disabled", [7]),
        ({"type": "retention_ratio", "retention_ratio": 0.5}, [7, 3, 1]),
    ],
)
def test_a_conversation_that_is_too_long_is_shortened_by_turns(
    talk: Talk, gateway: RunningGateway, truncation: Any, lengths: list[int]
) -> None:
    """The fake thinker refuses the last text, however long the chat is."""
    talk.update(output_modalities=["text"], truncation=truncation)
    for _ in range(3):
        talk.write("Hello")
        talk.answer()
    talk.write("refuse")
    opened = gateway.stages.stages["thinker"].opened
    before = gateway.do(lambda: len(opened))
    assert talk.answer()["status_details"]["error"]["code"] == "context_length_exceeded"
    chats = gateway.do(lambda: [one.message.fields for one in opened[before:]])
    answers = [chat for chat in chats if chat.get("max_completion_tokens") != 1]  # else read ahead
    assert [len(chat["messages"]) for chat in answers] == lengths
    talk.write("Hello")  # what was left out stays so
    talk.answer()
    assert len(last_messages(gateway)) == lengths[-1] + 1


@pytest.mark.parametrize(
    ("settings", "num_turns"),
    [
        ({"output_modalities": ["text"]}, 4),  # the thinker takes 128 tokens, 32 of them its own
        ({"output_modalities": ["audio"]}, 1),  # the talker 64, 16 of them for frames
        ({"output_modalities": ["audio"], "truncation": "disabled"}, 4),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 1.0}}, 2),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 0.0}}, 1),
        (
            {
                "output_modalities": ["text"],
                "truncation": {
                    "type": "retention_ratio",
                    "retention_ratio": 1.0,
                    "token_limits": {"post_instructions": 62},
                },
            },
            3,
        ),
    ],
)
def test_a_conversation_has_room_for_its_answer_at_every_stage(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, settings: Any, num_turns: int
) -> None:
    """Four turns of some 20 tokens each; none has been answered, so they are estimated."""
    monkeypatch.setitem(fake_stages.LENGTHS, "talker", 64)
    with running_gateway(tmp_path, OMNI) as gateway, talking(gateway) as talk:
        talk.update(**settings)
        for _ in range(4):
            talk.write("x" * 40)
            said = [{"type": "output_text", "text": "y" * 30}]
            item = {"type": "message", "role": "assistant", "content": said}
            talk.say("conversation.item.create", item=item)
            talk.until("conversation.item.done")
        assert talk.answer()["status"] == "completed"
        assert len(last_messages(gateway)) == 2 * num_turns


def test_a_session_outlives_its_stages(tmp_path: Any) -> None:
    with running_gateway(tmp_path, OMNI) as gateway, talking(gateway) as talk:
        talk.update(**MANUAL)
        talk.write("pause")
        talk.say("response.create")
        talk.until("response.output_audio_transcript.delta")
        gateway.do(gateway.stages.stages["thinker"].kill)
        response = talk.until("response.done")["response"]
        assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")
        wait_until(lambda: httpx.get(f"{gateway.url}/ready").status_code == 200)
        talk.write("Hello")
        assert talk.answer()["status"] == "completed"
        roles = [one["role"] for one in last_messages(gateway)]
        assert roles == ["user", "assistant", "user"]
        talk.order.end()


def test_a_rate_that_is_used_up_fails_the_response(tmp_path: Any) -> None:
    with (
        running_gateway(tmp_path, OMNI, requests_per_minute=1) as gateway,
        talking(gateway) as talk,
    ):
        assert talk.answer()["status"] == "completed"
        response = talk.answer()
        assert response["status_details"]["error"]["code"] == "rate_limit_exceeded"
