"""The bodies of requests."""

import pytest

from omnistage.bench.workload import WORDS, PromptWorkload

PLAIN = PromptWorkload(seed=7, prompt_words=72, max_tokens=64)


def test_a_prompt_has_so_many_words_and_is_another_for_each_request() -> None:
    prompts = [PLAIN.prompt(number) for number in range(50)]
    assert len(set(prompts)) == 50
    assert {len(prompt.split()) for prompt in prompts} == {72}
    assert len(set(WORDS)) == len(WORDS)


def test_a_seed_repeats_its_prompts_and_another_has_others() -> None:
    again = PromptWorkload(seed=7, prompt_words=72, max_tokens=64)
    other = PromptWorkload(seed=8, prompt_words=72, max_tokens=64)
    assert again.prompt(3) == PLAIN.prompt(3)
    assert other.prompt(3) != PLAIN.prompt(3)


def test_a_text_request_says_nothing_that_openai_would_refuse() -> None:
    assert PLAIN.body(0, "m") == {
        "model": "m",
        "messages": [{"role": "user", "content": PLAIN.prompt(0)}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "modalities": ["text"],
        "max_tokens": 64,
    }


def test_frames_fix_the_length_of_text_and_sound() -> None:
    workload = PromptWorkload(
        7, 72, 64, ("text", "audio"), voice="ethan", frames=100, temperature=0
    )
    body = workload.body(0, "m")
    assert body["stage_params"] == {"talker": {"max_tokens": 100, "ignore_eos": True}}
    assert body["ignore_eos"] is True
    assert body["audio"] == {"voice": "ethan", "format": "pcm16"}
    assert body["temperature"] == 0


def test_overrides_win_in_order_and_null_drops_a_field() -> None:
    overrides = ({"max_tokens": 5, "a": 1}, {"a": 2, "stream_options": None})
    body = PromptWorkload(7, 72, 64, overrides=overrides).body(0, "m")
    assert (body["max_tokens"], body["a"]) == (5, 2)
    assert "stream_options" not in body


def test_the_prompt_is_filled_in_wherever_a_template_wants_it() -> None:
    part = {"type": "text", "text": "Draw {prompt}!"}
    template = {"messages": [{"role": "user", "content": [part, {"n": 3}]}]}
    body = PromptWorkload(7, 72, 64, overrides=(template,)).body(4, "m")
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": f"Draw {PLAIN.prompt(4)}!"},
        {"n": 3},
    ]
    assert part["text"] == "Draw {prompt}!"


@pytest.mark.parametrize("name", ["stage_params", "ignore_eos", "audio", "temperature"])
def test_what_was_not_asked_for_is_not_sent(name: str) -> None:
    assert name not in PLAIN.body(0, "m")
