"""An answer as OpenAI's own client reads it: whole, streamed, and by its helper; each checked."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion
from support.api.openai_spec import assert_valid

Event = dict[str, Any]


@contextlib.contextmanager
def strict_client(url: str) -> Iterator[OpenAI]:
    """OpenAI's client, which raises for what its types do not allow."""
    with OpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        timeout=600,
        default_headers={"Connection": "close"},  # a kept one is a descriptor left over
        _strict_response_validation=True,
    ) as client:
        yield client


@dataclass(frozen=True)
class Answers:
    """The same request answered three times."""

    whole: ChatCompletion
    events: list[Event]
    helped: ChatCompletion

    @property
    def finish_reasons(self) -> list[str]:
        """Of the first choice in each form; they should agree."""
        streamed = [choice["finish_reason"] for event in self.events for choice in event["choices"]]
        return [
            self.whole.choices[0].finish_reason,
            next(filter(None, reversed(streamed))),
            self.helped.choices[0].finish_reason,
        ]

    @property
    def texts(self) -> list[str | None]:
        """Of the first choice in each form; they should agree if the answer is a greedy one."""
        deltas = [event["choices"][0]["delta"] for event in self.events if event["choices"]]
        contents = [delta["content"] for delta in deltas if delta.get("content") is not None]
        return [
            self.whole.choices[0].message.content or "",
            "".join(contents),
            self.helped.choices[0].message.content or "",
        ]


def ask(client: OpenAI, **asked: Any) -> Answers:
    """Ask for one chat completion in every form; fail for what breaks OpenAI's contract."""
    whole = ask_whole(client, **asked)
    with client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        events = [chunk.model_dump(mode="json", exclude_unset=True) for chunk in stream]
    for event in events:
        assert_valid(event, "CreateChatCompletionStreamResponse", "chat")
    check_order(events)
    with client.chat.completions.stream(**asked) as helper:
        for _ in helper:
            continue
        snapshot = helper.current_completion_snapshot
        is_cut = any(choice.finish_reason == "length" for choice in snapshot.choices)
        # of a cut answer the helper raises an error instead
        helped = snapshot if is_cut else helper.get_final_completion()
    assert helped.usage is None
    return Answers(whole, events, helped)


def ask_whole(client: OpenAI, **asked: Any) -> ChatCompletion:
    """One whole chat completion, checked."""
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert_valid(json.loads(raw.text), "CreateChatCompletionResponse", "chat")
    parsed: ChatCompletion = raw.parse()
    return parsed


def check_order(events: list[Event]) -> None:
    """What clients concatenate or sum comes once, each choice ends once, the usage comes last."""
    assert len({event["id"] for event in events}) == 1
    *pieces, last = events
    assert all(event["usage"] is None for event in pieces)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    choices = [choice for event in pieces for choice in event["choices"]]
    for index in {choice["index"] for choice in choices}:
        own = [choice for choice in choices if choice["index"] == index]
        assert ["role" in choice["delta"] for choice in own] == [True] + [False] * (len(own) - 1)
        reasons = [choice["finish_reason"] for choice in own]
        assert None not in reasons[-1:]
        assert not any(reasons[:-1])
        sounds = [choice["delta"]["audio"] for choice in own if "audio" in choice["delta"]]
        for once in ("id", "expires_at"):
            assert sum(once in sound for sound in sounds) == bool(sounds)
