"""Deltas of calls, one entry of each; a spoken answer's chunks in whatever order parts come."""

from typing import Any

import pytest

from omnistage.server.runtime.request import AudioOutput, Output, TextOutput
from omnistage.server.runtime.samples import SampleFormat
from omnistage.server.tasks.chat.chunks import AnswerHead, SpeechChunks, delta_of
from omnistage.server.tasks.chat.completion import Completion

HEAD = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look"}}


def part(index: int, arguments: str) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments}}


def whole(index: int, arguments: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {**HEAD, "index": index, "function": function}


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([HEAD], [HEAD]),
        ([part(0, "{")], [part(0, "{")]),
        ([HEAD, part(0, "{}")], [whole(0, "{}")]),
        ([HEAD, part(0, "{"), part(0, "}")], [whole(0, "{}")]),
        ([part(0, "}"), {**HEAD, "index": 1}, part(1, "{")], [part(0, "}"), whole(1, "{")]),
    ],
    ids=["a name", "arguments", "a call", "a call in pieces", "the end of one and another"],
)
def test_a_delta_has_one_entry_of_each_call(
    parts: list[dict[str, Any]], joined: list[dict[str, Any]]
) -> None:
    """Clients such as instructor read the first entry of a delta alone."""
    assert delta_of({"delta": {"tool_calls": parts}}) == {"tool_calls": joined}


def test_an_answer_whose_audio_comes_first_has_its_prompts_token_ids() -> None:
    text: dict[str, Any] = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
    begun: Output = TextOutput({**text, "prompt_token_ids": [1, 2]})
    audio: Output = AudioOutput(SampleFormat(24_000), b"\0\0")
    for outputs in ([begun, audio], [audio, begun]):
        made = SpeechChunks(AnswerHead("a", "m", True), has_codes=False, has_words=True)
        completion = Completion()
        for output in outputs:
            for chunk in made.chunks_of(output):
                completion.add(chunk)
        assert completion.to_speech(has_codes=False)["prompt_token_ids"] == [1, 2]
