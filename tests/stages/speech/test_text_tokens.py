"""Tokens of texts in pieces beside the tokens of the whole texts, in any cutting."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from omnistage.stages.speech.text_tokens import TextTokenizer, TextTokens

SAMPLE = (
    "It's the user's 3 apples, isn't it? we'll see... "
    "今天天气很好\uff0c我们去公园玩吧\uff01 哈哈哈哈 東京都 "
    "안녕하세요 여러분 สวัสดีครับ Ärger über Öl é e\u0301  a   b    c \n \n  12345 A1b2 \t x !\n"
) * 20
LETTERS = "abst'rel SD .,!?\n\r\t 12今天气很好我们哈\uff0c。éü한각ส<>|/_"
RARE = "\u0301\u1100\u1161\u11a8\u0e31\u0e32\u3000\u00a0\u0308"
ALPHABET = LETTERS + RARE
WORDS = [
    "it's",
    " isn't",
    "今天",
    "天气",
    "<think>",
    "<|im_end|>",
    "12",
    "\n ",
    "   ",
    "\u1100\u1161",
]
BYTES = [chr(code) for code in range(33, 324)]  # the stand-ins of all bytes, and a few more
texts = st.lists(st.one_of(st.text(ALPHABET, max_size=6), st.sampled_from(WORDS), st.text()))
cuts = st.lists(st.integers(0, 60))


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> TextTokenizer:
    return TextTokenizer(str(tiny_checkpoint))


@pytest.fixture(scope="module")
def trained(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """The tiny one's rules with words of many scripts in its vocabulary."""
    folder = tmp_path_factory.mktemp("trained")
    base: Any = AutoTokenizer.from_pretrained(tiny_checkpoint)
    learner = Tokenizer(models.BPE())
    learner.normalizer = base.backend_tokenizer.normalizer
    learner.pre_tokenizer = base.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=900, min_frequency=2, initial_alphabet=BYTES)
    learner.train_from_iterator([SAMPLE, SAMPLE[::-1]], trainer)
    base.backend_tokenizer.model = learner.model
    base.save_pretrained(folder)
    return TextTokenizer(str(folder))


def in_pieces(tokenizer: TextTokenizer, pieces: list[str]) -> list[int]:
    tokens = TextTokens(tokenizer)
    got = [token for piece in pieces for token in tokens.add(piece)]
    got += tokens.finish()
    assert tokens.count == len(got)
    return got


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(max_examples=400, deadline=None)
@given(parts=texts, places=cuts)
def test_in_any_cutting_they_are_those_of_the_whole_text(
    parts: list[str], places: list[int], trained: TextTokenizer, tiny: TextTokenizer
) -> None:
    text = "".join(parts).encode("utf-8", "ignore").decode()
    for tokenizer in (tiny, trained):
        whole = tokenizer.tokens(text)
        assert in_pieces(tokenizer, cut(text, places)) == whole
        assert in_pieces(tokenizer, list(text)) == whole


@pytest.mark.parametrize("text", ["\u1100\u1161\u11a8", "\u1100\u1161\u11a81", "\uac00\u11a8"])
def test_a_syllable_that_normalization_makes_of_several_letters_is_not_cut(
    text: str, trained: TextTokenizer, tiny: TextTokenizer
) -> None:
    for tokenizer in (tiny, trained):
        assert in_pieces(tokenizer, list(text)) == tokenizer.tokens(text)


def test_the_trained_vocabulary_has_words_across_letters(trained: TextTokenizer) -> None:
    """Else the property above would say little of scripts without spaces."""
    assert len(trained.tokens("今天天气")) < len("今天天气".encode())
    assert len(trained.tokens("哈哈哈哈")) < len("哈哈哈哈")


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("Hello", ""),
        ("Hello ", "Hello"),
        ("Hello wor", "Hello"),
        ("Hello world.", "Hello world"),
        ("你好\uff0c", "你好"),
        ("3 apples and", "3 apples"),
        ("wait!\n", "wait"),
        ("a <think", "a"),
    ],
)
def test_a_word_is_known_as_soon_as_the_next_one_begins(
    text: str, known: str, tiny: TextTokenizer
) -> None:
    assert TextTokens(tiny).add(text) == tiny.tokens(known)


def test_letters_of_a_script_without_spaces_do_not_wait_for_the_end_of_their_clause(
    trained: TextTokenizer,
) -> None:
    tokens = TextTokens(trained)
    counts = [len(tokens.add(letter)) for letter in "我们去公园玩吧今天天气很好我们去公园玩吧"]
    assert sum(counts) >= len(trained.tokens("我们去公园玩吧今天天气很好"))


def test_a_tokenizer_with_another_split_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    other: Any = AutoTokenizer.from_pretrained(tiny_checkpoint)
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    backend = other.backend_tokenizer
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    with pytest.raises(ValueError, match="split"):
        TextTokenizer(str(tmp_path))
