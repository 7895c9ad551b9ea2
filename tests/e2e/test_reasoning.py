"""What a model thinks before it answers, told apart by vLLM's own parser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI
from support.openai_answers import Answers, ask, strict_client
from support.server import TinyServer, running_server

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine

END_OF_THOUGHT = 290


@pytest.fixture(scope="module")
def thinking(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    """The tiny thinker alone, its answers read as Qwen's thinking models write them."""
    folder = tmp_path_factory.mktemp("thinking")
    tiny = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    thinker = tiny["stages"]["thinker"] | {"options": {"reasoning_parser": "qwen3"}}
    graph = {"stages": {"thinker": thinker}, "outputs": {"text": "thinker"}}
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    with running_server(str(path), folder / "log", "--model", str(tiny_checkpoint)) as server:
        yield server


@pytest.fixture(scope="module")
def client(thinking: TinyServer) -> Iterator[OpenAI]:
    with strict_client(thinking.url) as connected:
        yield connected


def think(client: OpenAI, thinking: TinyServer, **more: Any) -> Answers:
    """A thought and an answer of a few letters: the model may write nothing else."""
    letters = {"allowed_token_ids": [*b"abcd", END_OF_THOUGHT], **more}
    messages: Any = [{"role": "user", "content": "Hello"}]
    return ask(
        client,
        model=thinking.model,
        messages=messages,
        seed=2,
        max_tokens=24,
        logit_bias={str(END_OF_THOUGHT): 4},
        extra_body=letters,
    )


def test_a_thought_is_told_apart(client: OpenAI, thinking: TinyServer) -> None:
    answers = think(client, thinking)
    message = answers.whole.choices[0].message.model_dump()
    deltas = [choice["delta"] for event in answers.events for choice in event["choices"]]
    assert message["reasoning"] == "".join(delta.get("reasoning") or "" for delta in deltas) != ""
    assert message["content"] == answers.texts[1] != ""
    assert set(message["reasoning"]) <= set("abcd")
    assert answers.whole.usage is not None
    assert answers.whole.usage.completion_tokens_details is not None
    assert answers.whole.usage.completion_tokens_details.reasoning_tokens == (
        len(message["reasoning"])
    )


def test_a_thought_can_be_left_out(client: OpenAI, thinking: TinyServer) -> None:
    shown = think(client, thinking)
    hidden = think(client, thinking, include_reasoning=False)
    assert hidden.texts == shown.texts
    assert "reasoning" not in hidden.whole.choices[0].message.model_dump()
