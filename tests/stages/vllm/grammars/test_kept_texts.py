"""Texts that a tokenizer writes otherwise: found, and followed by llguidance all the same."""

import json
import re
from typing import Any

import pytest

pytest.importorskip("vllm")

import llguidance
import llguidance.hf
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from omnistage.stages.checkpoint.tokenizer import TAGS, byte_tokenizer
from omnistage.stages.vllm.compat import StructuredOutputsParams
from omnistage.stages.vllm.grammars.grammars import constraint_of
from omnistage.stages.vllm.grammars.kept_texts import KeptTexts

ACCENT = "e\u0301"
VIETNAMESE = "Vie\u0323\u0302t"
HANGUL = "\u1112\u1161\u11ab"
ANGSTROM = "\u212b"  # one character that NFC makes another
FREE = '%llguidance {"no_forcing": true}'


def bytes_with(normalizer: Any) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer(("<|im_end|>",))
    tokenizer.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")


def pieces_with(normalizer: Any) -> PreTrainedTokenizerFast:
    """Write spaces as SentencePiece does, and what is not in the vocabulary as bytes."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    words += [chr(code) for code in range(33, 127)]
    vocab = {word: number for number, word in enumerate(words)}
    model = models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


SPACES = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
KEPT = ["abc", "A  b ", "\u00e9", "\ud55c", "\u65e5\u672c"]
OTHERS = [ACCENT, VIETNAMESE, HANGUL, ANGSTROM]
TOKENIZERS: list[tuple[str, PreTrainedTokenizerFast, list[str], list[str]]] = [
    ("nothing", bytes_with(None), [*KEPT, *OTHERS, "\ufb01"], []),
    ("NFC", bytes_with(normalizers.NFC()), [*KEPT, "\ufb01"], OTHERS),
    ("NFKC", bytes_with(normalizers.NFKC()), KEPT, [*OTHERS, "\ufb01", "\u00b2"]),
    ("NFD", bytes_with(normalizers.NFD()), ["abc", ACCENT], ["\u00e9", "\ud55c"]),
    ("small letters", bytes_with(normalizers.Lowercase()), [], ["abc", "A", "\u00c9"]),
    ("pieces", pieces_with(normalizers.Sequence(SPACES)), [*KEPT, *OTHERS], []),
    (
        "pieces after NFKC",
        pieces_with(normalizers.Sequence([normalizers.NFKC(), *SPACES])),
        KEPT,
        [*OTHERS, "\ufb01"],
    ),
]


@pytest.mark.parametrize(
    ("tokenizer", "kept", "others"),
    [case[1:] for case in TOKENIZERS],
    ids=[case[0] for case in TOKENIZERS],
)
def test_texts_that_a_tokenizer_rewrites_are_found(
    tokenizer: PreTrainedTokenizerFast, kept: list[str], others: list[str]
) -> None:
    """One that makes small letters of large ones has no text that is surely kept."""
    texts = KeptTexts(tokenizer, len(tokenizer))
    assert [text for text in kept if not texts.keeps(text, False)] == []
    assert [text for text in others if texts.keeps(text, False)] == []


@pytest.mark.parametrize(
    ("pattern", "is_kept"),
    [
        ("[a-z]{2}\\d+", True),
        ("\u00e9[\u4e00-\u9fff]", True),
        (ACCENT, False),
        ("[e]\u0301", False),
        ("e(\u0301|x)", False),
        ("e\\u0301", False),
        ("e\\x{301}", False),
        ("e\\p{Mn}", False),
        ("\u1112(\u1161|\u1162)", False),
    ],
)
def test_patterns_that_may_make_such_texts_are_found(pattern: str, is_kept: bool) -> None:
    nfc = bytes_with(normalizers.NFC())
    assert KeptTexts(nfc, len(nfc)).keeps(pattern, True) is is_kept
    plain = bytes_with(None)
    assert KeptTexts(plain, len(plain)).keeps(pattern, True)


def tag(schema: Any) -> str:
    begin = '<tool_call>\n{"name": "go", "arguments": '
    content = {"type": "json_schema", "json_schema": schema}
    one = {"type": "tag", "begin": begin, "content": content, "end": "}\n</tool_call>"}
    more = {"separator": "", "at_least_one": True, "stop_after_first": True}
    form = {"type": "tags_with_separator", "tags": [one], **more}
    return json.dumps({"type": "structural_tag", "format": form})


def named(name: str, value: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"const": value}},
        "required": [name],
        "additionalProperties": False,
    }


# What a grammar may say, and a text of it.
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "choice": ({"choice": [VIETNAMESE, "b"]}, VIETNAMESE),
    "a choice of one": ({"choice": [ANGSTROM]}, ANGSTROM),
    "a choice with a token": ({"choice": [f"<think>{HANGUL}"]}, f"<think>{HANGUL}"),
    "regex": ({"regex": f"{VIETNAMESE}[0-9]"}, f"{VIETNAMESE}7"),
    "regex of an escape": ({"regex": "e\\u0301x"}, f"{ACCENT}x"),
    "regex of a class": ({"regex": "[e]\u0301"}, ACCENT),
    "regex with a token": ({"regex": f"<think>{ACCENT}+"}, f"<think>{ACCENT}"),
    "const": ({"json": {"const": HANGUL}}, f'"{HANGUL}"'),
    "const in a string": ({"json": json.dumps({"const": HANGUL})}, f'"{HANGUL}"'),
    "const of an object": ({"json": {"const": {ACCENT: [HANGUL]}}}, f'{{"{ACCENT}":["{HANGUL}"]}}'),
    "enum": ({"json": {"enum": [1, ACCENT]}}, f'"{ACCENT}"'),
    "a property's name": ({"json": named(VIETNAMESE, 1)}, f'{{"{VIETNAMESE}":1}}'),
    "a property's value": ({"json": named("a", HANGUL)}, f'{{"a":"{HANGUL}"}}'),
    "pattern": ({"json": {"type": "string", "pattern": f"^{ACCENT}$"}}, f'"{ACCENT}"'),
    "patternProperties": (
        {
            "json": {
                "type": "object",
                "patternProperties": {f"^{ACCENT}$": {"const": 1}},
                "additionalProperties": False,
            }
        },
        f'{{"{ACCENT}":1}}',
    ),
    "a definition": (
        {"json": {"$defs": {"a": {"const": ACCENT}}, "anyOf": [{"$ref": "#/$defs/a"}]}},
        f'"{ACCENT}"',
    ),
    "a call's arguments": (
        {"structural_tag": tag(named(VIETNAMESE, ACCENT))},
        f'<tool_call>\n{{"name": "go", "arguments": {{"{VIETNAMESE}":"{ACCENT}"}}}}\n</tool_call>',
    ),
}


def follows(tokens: Any, grammar: str, ids: list[int]) -> bool:
    """Whether each token is allowed before it comes, and is then taken, to the end."""
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
    for token in ids:
        mask = matcher.compute_bitmask()
        if not mask[token // 8] >> token % 8 & 1 or not matcher.consume_token(token):
            return False
    return bool(matcher.is_accepting())


def grammar_of(given: StructuredOutputsParams) -> str:
    """What vLLM hands to llguidance."""
    if given.json is not None:
        return llguidance.LLMatcher.grammar_from_json_schema(given.json)
    if given.regex is not None:
        return llguidance.grammar_from("regex", given.regex)
    if given.choice is not None:
        return llguidance.grammar_from("choice", json.dumps(given.choice))
    assert given.grammar is not None
    return llguidance.grammar_from("grammar", given.grammar)


@pytest.mark.parametrize("name", FORMS)
def test_a_text_that_qwen_s_tokenizer_rewrites_can_be_written(
    name: str, tiny_checkpoint: Any
) -> None:
    """By the tokens of its bytes: those that the tokenizer itself would choose spell another."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_checkpoint))
    tokens = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))
    added = tokenizer.get_added_vocab()
    constraint, text = FORMS[name]
    parts = re.split(f"({'|'.join(TAGS)})", text)
    ids = [
        token
        for part in parts
        for token in ([added[part]] if part in added else tokens.greedy_tokenize(part))
    ]
    untouched, given = (StructuredOutputsParams(**constraint) for _ in range(2))
    constraint_of(untouched, added)
    assert not follows(tokens, grammar_of(untouched), ids)
    kept = KeptTexts(tokenizer, len(tokenizer))
    assert constraint_of(given, added, kept.keeps) is not None
    assert follows(tokens, grammar_of(given), ids)


@pytest.mark.parametrize(
    "constraint",
    [
        {"choice": ["a", "\u00e9"]},
        {"regex": "[a-z]\u00e9"},
        {"json": named("\ud55c", "\u00e9")},
        {"structural_tag": tag(named("\ud55c", "\u00e9"))},
    ],
    ids=lambda one: next(iter(one)),
)
def test_tokens_of_texts_that_are_kept_stay_the_tokenizer_s(
    constraint: dict[str, Any], tiny_checkpoint: Any
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_checkpoint))
    given = StructuredOutputsParams(**constraint)
    constraint_of(given, tokenizer.get_added_vocab(), KeptTexts(tokenizer, 0).keeps)
    assert FREE not in grammar_of(given)
