"""The report of language counts what breaks a rule, and nothing in code."""

import re
from pathlib import Path

import pytest
import words
from words import MAX_WORDS, findings, sentences

LONG = " ".join(["word"] * (MAX_WORDS + 1))


@pytest.mark.parametrize(
    ("page", "kind", "count"),
    [
        (f"{LONG}.", "long", 1),
        (f"{' '.join(['word'] * MAX_WORDS)}.", "long", 0),
        (f"A sentence. {LONG}. Another.", "long", 1),
        (f"| one | {LONG} |", "long", 1),
        (f"```\n{LONG}\n```", "long", 0),
        (", ".join(["`name`"] * (MAX_WORDS + 1)), "long", 0),
        (f"{' '.join(['word'] * 20)}. vLLM {' '.join(['word'] * 20)}.", "long", 0),
        ("Which one it is.", "opening", 1),
        ("It works. Of all, one is left.", "opening", 1),
        ("- Whether it runs", "opening", 1),
        ("Offline it works.", "opening", 0),
        ("The log tells it, as was said.", "verb", 2),
        ("`tells` is a flag; [x](told.md) a link.", "verb", 0),
    ],
)
def test_a_page_s_findings_are_counted(page: str, kind: str, count: int) -> None:
    assert findings(page)[kind] == count


def test_cells_and_items_are_sentences_of_their_own() -> None:
    page = "# Title\n\n| a | b |\n|---|---|\n| One. Two. | three |\n\n- item\n- other\n  goes on"
    assert list(sentences(page)) == [
        "Title",
        "a",
        "b",
        "One.",
        "Two.",
        "three",
        "item",
        "other goes on",
    ]


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("It works.", ""),
        (f"It works.\n\n{LONG}.", f"page.md: long: {LONG}."),
        ("Its log tells it.", "page.md: opening, verb: Its log tells it."),
    ],
)
def test_check_names_each_sentence_that_breaks_a_rule(
    page: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    monkeypatch.setattr("sys.argv", ["words.py", "--check", str(path)])
    with pytest.raises(SystemExit) as ended:
        words.main()
    assert (ended.value.code or "") == printed


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ('"""Which one it is."""\n', ["1: Which one it is."]),
        ('class Name:\n    """What it is called."""\n', ["1: What it is called."]),
        ('def a():\n    """See B.\n\n    More.\n    """\n', ["1: See B."]),
        ('async def a():\n    """Whether it runs."""\n', ["1: Whether it runs."]),
        ('def a():\n    """Returns what is left. Of all, one."""\n', []),
        ("def a():\n    # What it does\n    return 1\n", []),
        ('"""Offline use."""\n', []),
    ],
)
def test_docstrings_open_with_a_verb_or_a_noun(code: str, lines: list[str]) -> None:
    assert list(words.wrong_docstrings(code)) == lines


def test_the_product_is_read() -> None:
    names = {path.relative_to(words.ROOT).as_posix() for path in words.product()}
    assert {"server/app.py", "stages/vllm/text.py", "scripts/words.py"} < names


def test_a_class_name_has_one_meaning(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("class Name: ...\nclass _Name: ...\nclass Talker: ...\n")
    other.write_text("class Name: ...\nclass _Name: ...\nclass Talker: ...\n")
    assert list(words.shared_names([one, other])) == [
        f"class Name has several meanings: {one}, {other}"
    ]
    assert list(words.shared_names([one])) == []


def test_every_shared_name_is_needed() -> None:
    files = [*words.product()]
    names = [name for path in files for name in re.findall(r"^class (\w+)", path.read_text(), re.M)]
    assert all(names.count(name) > 1 for name in words.SHARED_NAMES)
