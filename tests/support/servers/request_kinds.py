"""A request of every kind that a text stage takes, as its gateway sends it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from support.stages.text_stage import TextHarness

from omnistage.stages.worker.process.compiles import read_compiles

ADAPTER = "ink"  # the name of the stage's adapter
NUM_TOKENS = 4
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
LONG = "many words " * 30  # more than one step of the tests' engines takes


def chat(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    """The body of a chat with few tokens."""
    message = {"role": "user", "content": text}
    return {"messages": [message], "max_completion_tokens": NUM_TOKENS, **fields}


def completion(prompt: Any = "Hello", **fields: Any) -> dict[str, Any]:
    """The body of a text completion with few tokens."""
    return {"prompt": prompt, "max_tokens": NUM_TOKENS, **fields}


def constrained(**grammar: Any) -> dict[str, Any]:
    """A chat whose answer has to follow a grammar."""
    return chat(structured_outputs=grammar)


# Several bodies are sent at once.
KINDS: Mapping[str, list[dict[str, Any]]] = {
    "greedy": [chat(temperature=0)],
    "sampled": [chat(temperature=1.0)],
    "seed": [chat(seed=7)],
    "top_k": [chat(top_k=5)],
    "top_p": [chat(top_p=0.5)],
    "top_k and top_p": [chat(top_k=5, top_p=0.5)],
    "min_p": [chat(min_p=0.1)],
    "repetition_penalty": [chat(repetition_penalty=1.2)],
    "frequency_penalty": [chat(frequency_penalty=0.5)],
    "presence_penalty": [chat(presence_penalty=0.5)],
    "logit_bias": [chat(logit_bias={"5": 3.0})],
    "bad_words": [chat(bad_words=["no", "never again"])],
    "allowed_token_ids": [chat(allowed_token_ids=[5, 6, 7])],
    "min_tokens": [chat(min_tokens=2)],
    "ignore_eos": [chat(ignore_eos=True)],
    "stop": [chat(stop=["."], stop_token_ids=[5])],
    "logprobs": [chat(logprobs=True, top_logprobs=3)],
    "logprobs without others": [chat(logprobs=True)],
    "greedy logprobs": [chat(logprobs=True, top_logprobs=20, temperature=0)],
    "each number of logprobs": [chat(logprobs=True, top_logprobs=num) for num in range(21)],
    "n": [chat(n=3)],
    "n with logprobs": [chat(n=3, logprobs=True, top_logprobs=2)],
    "response_format": [chat(response_format={"type": "json_object"})],
    "schema": [constrained(json=SCHEMA)],
    "regex": [constrained(regex="[a-z]{3}")],
    "choice": [constrained(choice=["yes", "no"])],
    "grammar": [constrained(grammar='start: "yes" | "no"')],
    "tools": [chat(tools=[TOOL], tool_choice="required")],
    "long prompt": [chat(LONG)],
    "completion": [completion()],
    "echo": [completion(echo=True)],
    "echo alone": [completion(echo=True, max_tokens=1)],
    "echo with logprobs": [completion(echo=True, logprobs=2)],
    "long echo with logprobs": [completion(LONG, echo=True, logprobs=2)],
    "several prompts": [completion(["Hello", "Goodbye"])],
    "tokens as a prompt": [completion([5, 6, 7])],
    "cache_salt": [chat(cache_salt="salt")],
    "adapter": [chat(model=ADAPTER)],
    "adapter with logprobs": [chat(model=ADAPTER, logprobs=True)],
    "many": [chat(f"Number {number}?") for number in range(4)],
    "many that differ": [
        chat(temperature=0, logprobs=True),
        chat(seed=3, top_k=4, frequency_penalty=0.5),
        constrained(regex="[0-9]{3}"),
        completion("Hi", echo=True, logprobs=1),
    ],
    "everything": [
        chat(
            seed=1,
            top_k=9,
            top_p=0.9,
            min_p=0.05,
            repetition_penalty=1.1,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            logit_bias={"5": 1.0},
            bad_words=["no"],
            min_tokens=2,
            logprobs=True,
            top_logprobs=5,
            structured_outputs={"regex": "[a-z]{5}"},
        )
    ],
}


async def compiled_by(stage: TextHarness, kind: str) -> int:
    """Answer one kind of request; how often the stage's processes compiled something for it."""
    before = read_compiles()
    bodies = enumerate(KINDS[kind])
    await asyncio.gather(*(stage.chunks(f"{kind}-{number}", body) for number, body in bodies))
    return read_compiles().begun - before.begun
