"""Has a request's grammar tried before its engine gets it: beside the engine, for a second at most.

An engine compiles a grammar in a thread of its own process, where nobody can stop it, and a grammar
that it cannot take fails as if the engine had.
"""

import asyncio
import hashlib
import json
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection
from dataclasses import replace
from typing import Any

from omnistage.stages.messages.log_bound import shortened
from omnistage.stages.vllm.compat import GrammarRefused, SamplingParams, StructuredOutputsParams
from omnistage.stages.vllm.grammars.grammar_judge import CALLS, SCHEMA, Kind
from omnistage.stages.vllm.grammars.kept_texts import Keeps, KeptTexts, keeps_all
from omnistage.stages.vllm.grammars.spelled_tokens import check_schema, check_texts
from omnistage.stages.vllm.grammars.structural_tags import (
    calls_of,
    guided,
    lark_of_choice,
    lark_of_pattern,
    lark_of_schema,
)
from omnistage.stages.vllm.workers.together import TogetherLLM

JUDGE = "omnistage.stages.vllm.grammars.grammar_judge"
NUM_AT_ONCE = 2
MAX_WAIT_S = 60.0  # for a second of a CPU that is busy
MAX_REMEMBERED = 4096
MAX_PATTERN_BYTES = 200
GUIDANCE = "guidance"  # vLLM's name of llguidance


class Grammars:
    """Judges grammars, a few at a time, and remembers what it found."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(NUM_AT_ONCE)
        self._asking: dict[bytes, asyncio.Lock] = {}
        self._problems: OrderedDict[bytes, str] = OrderedDict()

    async def check(self, kind: Kind, text: str) -> None:
        """Raise GrammarRefused for one that the engine cannot take."""
        key = hashlib.sha256(f"{kind} {text}".encode()).digest()
        async with self._asking.setdefault(key, asyncio.Lock()):
            try:
                if key not in self._problems:
                    async with self._places:
                        self._problems[key] = await _judged(kind, text)
            finally:
                self._asking.pop(key, None)
        self._problems.move_to_end(key)
        problem = self._problems[key]
        while len(self._problems) > MAX_REMEMBERED:
            self._problems.popitem(last=False)
        if problem:
            raise GrammarRefused(f"Grammar error: {problem}")


async def _judged(kind: Kind, text: str) -> str:
    pipe = asyncio.subprocess.PIPE
    judge = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", JUDGE), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    asked = json.dumps({"kind": kind, "text": text}).encode()
    try:
        async with asyncio.timeout(MAX_WAIT_S):
            problem, _ = await judge.communicate(asked)
    except TimeoutError:
        return too_large(kind, text)
    finally:
        if judge.returncode is None:
            judge.kill()
            await judge.wait()
    return problem.decode() if judge.returncode == 0 else too_large(kind, text)


def too_large(kind: Kind, text: str) -> str:
    """Returns what to say of a grammar that takes its judge too long, or too much memory."""
    found = f"it takes too long to compile: {len(text)} characters"
    is_json = kind in (SCHEMA, CALLS)
    longest = max(_patterns(json.loads(text)), key=len, default="") if is_json else text
    if longest:
        found += f", the longest pattern {shortened(longest, MAX_PATTERN_BYTES)}"
    return f"{found}; use smaller counts, fewer patterns or fewer optional properties"


def _patterns(schema: object) -> list[str]:
    if isinstance(schema, list):
        return [pattern for item in schema for pattern in _patterns(item)]
    if not isinstance(schema, dict):
        return []
    own = schema.get("pattern")
    below = [pattern for value in schema.values() for pattern in _patterns(value)]
    return [own, *below] if isinstance(own, str) else below


def constraint_of(
    given: StructuredOutputsParams, added_tokens: Collection[str] = (), keeps: Keeps = keeps_all
) -> tuple[Kind, str] | None:
    """The kind and the text of a request's grammar, made to be one that llguidance takes.

    Schemas are made to allow `oneOf`; what a call of a tool looks like becomes a grammar, and so
    does what has texts that the tokenizer would write otherwise.
    """
    if given.json is not None:
        schema = json.loads(given.json) if isinstance(given.json, str) else given.json
        check_schema(schema, added_tokens)
        if isinstance(schema, dict):
            schema = guided(schema)
            given.grammar = lark_of_schema(schema, keeps)
        judged_schema = json.dumps(schema)
        given.json = judged_schema if given.grammar is None else None
        return SCHEMA, judged_schema
    if given.structural_tag is not None:
        judged = calls_of(given.structural_tag, ())  # by a judge without the tokenizer
        if judged is None:
            return None
        calls = calls_of(given.structural_tag, added_tokens, keeps)
        assert calls is not None
        given.grammar, given.structural_tag = calls["grammar"], None
        return CALLS, json.dumps(judged)
    if given.regex is not None:
        judged_pattern = given.regex
        grammar = lark_of_pattern(given.regex, added_tokens, keeps)
        if grammar is not None:
            given.grammar, given.regex = grammar, None
        return "regex", judged_pattern
    if given.choice is not None:
        judged_choice = json.dumps(given.choice)
        grammar = lark_of_choice(given.choice, added_tokens, keeps)
        if grammar is None:
            check_texts(given.choice, added_tokens)
        else:
            given.grammar, given.choice = grammar, None
        return "choice", judged_choice
    return None if given.grammar is None else ("grammar", given.grammar)


class JudgedLLM(TogetherLLM):
    """AsyncLLM that gets no grammar which its engine cannot take."""

    grammars: Grammars
    _kept_texts: KeptTexts | None = None  # made for the first grammar

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Generates like AsyncLLM."""
        if sampling_params.structured_outputs is not None:
            constraint = await self._constraint_of(sampling_params.structured_outputs)
            if constraint is not None:
                await self.grammars.check(*constraint)
        async for output in super().generate(prompt, sampling_params, request_id, **options):
            yield output

    async def _constraint_of(self, given: StructuredOutputsParams) -> tuple[Kind, str] | None:
        """Returns what is to be tried; another backend than llguidance gets its grammar as it
        is.
        """
        if self.vllm_config.structured_outputs_config.backend != GUIDANCE:
            return None if given.structural_tag is not None else constraint_of(replace(given))
        tokenizer = self.renderer.tokenizer
        if self._kept_texts is None:
            vocab_size = self.model_config.get_vocab_size()
            self._kept_texts = await asyncio.to_thread(KeptTexts, tokenizer, vocab_size)
        return constraint_of(given, tokenizer.get_added_vocab(), self._kept_texts.keeps)
