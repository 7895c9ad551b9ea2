"""`omnistage up` from nothing, on a terminal: what is seen, and what answers.

Its fixture looks at what is left after Ctrl-C.
"""

from pathlib import Path

import httpx
import pytest
from support.oracles.meaning import SmallServer, Up

pytestmark = pytest.mark.engine

MODEL, NOTE = (
    "small",
    "a toy that knows some 300 words, not Qwen; after an image or audio, begin a new conversation",
)


def test_a_dozen_lines_lead_from_nothing_to_both_addresses(up: Up) -> None:
    lines = up.lines
    assert len(lines) <= 12, lines
    assert lines[0].endswith(f": {MODEL} (text, audio, image); {NOTE}")
    for line, stage in zip(lines[1:5], ("thinker", "talker", "code2wav", "dit"), strict=True):
        assert f"{stage}: ready" in line
    assert any(f"The page is at http://127.0.0.1:{up.page_port}" in line for line in lines)


def test_it_answers_in_text_and_speech_and_has_its_page(up: Up, small: SmallServer) -> None:
    messages = [{"role": "user", "content": "What is seven plus five?"}]
    answer = small.post("/v1/chat/completions", {"messages": messages}).json()
    assert answer["model"] == MODEL
    assert answer["choices"][0]["message"]["content"] == "Seven plus five is twelve."
    speech = {"input": "Hello there.", "response_format": "wav"}
    assert small.post("/v1/audio/speech", speech).content[:4] == b"RIFF"
    (card,) = httpx.get(f"{small.url}/v1/models", timeout=600).json()["data"]
    assert card["note"] == NOTE
    assert httpx.get(f"http://127.0.0.1:{up.page_port}/", timeout=600).status_code == 200


def test_what_stages_print_is_in_files_and_not_on_the_terminal(up: Up) -> None:
    (line,) = [line for line in up.lines if "what the stages print" in line]
    thinker = Path(line.split()[0]) / "thinker.log"
    assert "WARNING" in thinker.read_text()
    assert not any("WARNING" in line for line in up.terminal.lines)
