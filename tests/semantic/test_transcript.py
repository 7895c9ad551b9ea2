"""docs/transcript.md has what the embedded model answers, hears and draws."""

import base64
import re
from typing import Any

import pytest
from ear import errors, words
from PIL import Image
from support.media.pictures import pixels_of
from support.oracles.drawings import asked, faults, seen
from support.oracles.meaning import SmallServer, chat_body, picture_part, sound_part, text_part
from support.oracles.recordings import heard
from support.repository.snippets import ROOT

from omnistage.demo.examples import spoken_question

pytestmark = pytest.mark.engine

ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
MOST_WRONG = 1  # word, as make transcript allows


def test_each_row_is_answered_heard_and_seen_as_it_is_written(small: SmallServer) -> None:
    def answer(*turns: Any, outputs: tuple[str, ...] = ("text", "audio")) -> dict[str, Any]:
        audio = {"voice": "adam", "format": "wav"}
        body = chat_body(*turns, modalities=list(outputs), audio=audio, seed=1)
        message: dict[str, Any] = small.post("/v1/chat/completions", body).json()["choices"][0]
        return dict(message["message"])

    _, *rows = ROW.findall((ROOT / "docs" / "transcript.md").read_text())
    draw, what, day = rows
    (wish,), (question,) = (re.findall("`(.+?)`", row[0]) for row in (draw, what))
    drawn = answer(wish, outputs=("text", "audio", "image"))
    pixels = pixels_of(drawn["images"][0]["image_url"]["url"].partition(",")[2])
    picture = picture_part(Image.fromarray(pixels))
    looked = answer(wish, draw[1], [picture, text_part(question)])
    listened = answer([sound_part(spoken_question(), "mp3")])
    for row, message in zip(rows, (drawn, looked, listened), strict=True):
        assert message["audio"]["transcript"] == row[1]
        sound = heard(base64.b64decode(message["audio"]["data"])).split()
        assert errors(words(row[1]), sound) <= MOST_WRONG, sound
        assert errors(words(row[1]), words(row[2])) <= MOST_WRONG
    assert faults(pixels, draw[1]) == []
    (wanted,) = asked(draw[1]).shapes
    (shape,) = seen(pixels)[1]
    assert {wanted.colour, wanted.kind, *shape.place} <= set(words(draw[3]))
    assert [what[3], day[3]] == ["none", "none"]
