"""`python -m omnistage.stages.vllm.grammars.grammar_judge`: tries a grammar as an engine would.

A process of its own for each, because nothing else can end a compiler: a schema of a few hundred
bytes can keep it busy for hours. It reads a grammar from its input as JSON, `{kind, text}`, and
writes what is wrong with it, if anything is. It ends itself after a second or two of a CPU. Of the
calls of tools the text is JSON, too: `{grammar, arguments}`, the schemas by the tools' names.
"""

import json
import math
import re
import resource
import sys
from typing import Literal

import llguidance

MAX_CPU_S = 1  # to the next whole second, which is the kernel's clock for it
MAX_MEMORY_BYTES = 2 << 30
NUM_STEPS = 64  # some grammars grow too large only while they are followed
STRIDE = 7  # of the bytes that may follow, not always the first
SCHEMA: Literal["json"] = "json"
CALLS: Literal["calls"] = "calls"
Written = Literal["json", "regex", "choice", "grammar"]
Kind = Written | Literal["calls"]
PLACE = re.compile(r"^at \d+\(\d+\): ")  # in a grammar that no client has seen


def problem_of(kind: Kind, text: str) -> str:
    """Why the engine cannot take a grammar; nothing if it can."""
    if kind == CALLS:
        return _problem_of_calls(**json.loads(text))
    try:
        grammar = _compiled(kind, text)
    except (ValueError, KeyError, TypeError) as error:
        return str(error)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    for step in range(NUM_STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        allowed = _bytes_of(matcher.compute_bitmask())
        if not allowed:
            break
        matcher.consume_token(allowed[step * STRIDE % len(allowed)])
    return str(matcher.get_error() or "").partition("\n<state>")[0]


def _problem_of_calls(grammar: str, arguments: dict[str, str]) -> str:
    """Blame the tool whose schema is the reason; the grammar of all is not the client's."""
    problem = problem_of("grammar", grammar).partition("\n")[0]
    for name, schema in arguments.items() if problem else ():
        own = problem_of(SCHEMA, schema)
        if own:
            return f"the parameters of {name}: {own}"
    return PLACE.sub("", problem)


def _compiled(kind: Written, text: str) -> str:
    if kind == SCHEMA:
        grammar: str = llguidance.LLMatcher.grammar_from_json_schema(text)
        return grammar
    return llguidance.grammar_from(kind, text)


def _bytes_of(mask: bytes) -> list[int]:
    return [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]


def main() -> None:
    """Judge one grammar."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime) + MAX_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    asked = json.load(sys.stdin)
    sys.stdout.write(problem_of(asked["kind"], asked["text"]))


if __name__ == "__main__":
    main()
