"""The tokenizer: byte-level BPE of about a thousand pieces, with Qwen's special tokens."""

import json
import random

from language.texts import talk, to_speak
from pictures import ask, prompt, scene
from tokenizers import AddedToken, Tokenizer, models, trainers
from world import WORDS

from omnistage.stages.checkpoint.tokenizer import (
    ROLE_WORDS,
    SPECIAL_TOKENS,
    TAGS,
    TinyTokenizer,
    byte_characters,
    byte_level,
)

NUM_MERGES = 760
_SEED = 7


def make_tokenizer() -> TinyTokenizer:
    """Train it; the same for every call."""
    trained = byte_level(models.BPE(), ())
    trainer = trainers.BpeTrainer(
        vocab_size=256 + NUM_MERGES,
        initial_alphabet=list(byte_characters().values()),
        show_progress=False,
    )
    trained.train_from_iterator(_corpus(), trainer)
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    vocabulary = {character: byte for byte, character in byte_characters().items()}
    for first, second in merges:
        vocabulary.setdefault(first + second, len(vocabulary))
    made: Tokenizer = byte_level(models.BPE(vocab=vocabulary, merges=merges), SPECIAL_TOKENS)
    made.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer = TinyTokenizer(made)
    for role in ROLE_WORDS:
        assert len(made.encode(role).ids) == 1, role
    return tokenizer


def _corpus() -> list[str]:
    pick = random.Random(_SEED)
    made = ["user", "system", "assistant"] * 40_000
    made += [f" {word}" for word in WORDS] * 40
    for _ in range(15_000):
        made += talk(pick).turns
        made.append(to_speak(pick))
        picture = scene(pick)
        made += ask(picture, pick)
        if picture.big:
            made.append(prompt(picture, pick))
    return made
