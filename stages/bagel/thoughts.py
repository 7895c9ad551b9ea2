"""Prompts that the language model reads before an image, and the thoughts that it writes then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from omnistage.stages.bagel.texts import MAX_THINK_TOKENS, THINKING, text_ids
from omnistage.stages.vllm.answers.seeds import derived_seed
from omnistage.stages.vllm.compat import RequestOutputKind, SamplingParams
from omnistage.stages.worker.failure import RequestError

OWN = ("contexts", "prefix_tokens", "thoughts")  # arguments of the pipeline that the stage gives
NotNegative = msgspec.Meta(ge=0)


class Thinking(msgspec.Struct, frozen=True):
    """The arguments of the pipeline that are about a thought, by their names there."""

    think: bool = False
    max_think_tokens: Annotated[int, NotNegative] = MAX_THINK_TOKENS
    think_temperature: Annotated[float, NotNegative] = 0.0

    @classmethod
    def of(cls, extra: Mapping[str, object]) -> "Thinking":
        """Read them from a request's other arguments; raises RequestError for a wrong one."""
        for name in OWN:
            if name in extra:
                raise _refusal(name, "is not for requests: the server computes it")
        made = cls()
        for name in cls.__struct_fields__:
            if extra.get(name) is not None:
                try:
                    one = msgspec.convert({name: extra[name]}, cls)
                except msgspec.ValidationError as error:
                    raise _refusal(name, str(error).partition(" - at ")[0]) from error
                made = msgspec.structs.replace(made, **{name: getattr(one, name)})
        return made

    @property
    def num_tokens(self) -> int:
        """Return how many tokens a thought has at most: the start that is given to it counts."""
        return max(self.max_think_tokens - 1, 0) if self.thinks else 0

    @property
    def num_with_marks(self) -> int:
        """Return how many tokens a thought has at most between its marks; 0 without one."""
        return self.num_tokens + 2 if self.thinks else 0

    @property
    def thinks(self) -> bool:
        """Return whether there is a thought."""
        return self.think and self.max_think_tokens > 0

    def sampling(self, seed: int | None, number: int, stops: Sequence[int]) -> SamplingParams:
        """Return how the thought of prompt `number` is written; `stops` end it."""
        return SamplingParams(
            temperature=self.think_temperature,
            seed=None if seed is None else derived_seed(seed, f"thought-{number}"),
            max_tokens=self.num_tokens,
            stop_token_ids=list(stops),
            skip_special_tokens=False,
            output_kind=RequestOutputKind.DELTA,
        )


def _refusal(name: str, problem: str) -> RequestError:
    place = f"extra.{name}"
    return RequestError(400, f"{place}: {problem}", param=place, code="invalid_value")


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """The ids of what is read before an image; guidance moves away from the first `num_prefix`.

    `field`: of the request that it is of.
    """

    ids: list[int]
    num_prefix: int
    field: str = "prompt"

    @classmethod
    def of(
        cls, tokenizer: Any, texts: Sequence[str], thinks: bool, field: str = "prompt"
    ) -> "ReadPrompt":
        """Read a conversation's texts, after the instruction to think if the model is to."""
        before = [THINKING, *texts[:-1]] if thinks else texts[:-1]
        prefix = [one for text in before for one in text_ids(tokenizer, text)]
        return cls([*prefix, *text_ids(tokenizer, texts[-1])], len(prefix), field)

    def followed(self, tokenizer: Any, thought: str) -> "ReadPrompt":
        """Return it with a thought, between its marks as any text is."""
        return replace(self, ids=[*self.ids, *text_ids(tokenizer, thought)])

    def check(self, max_model_len: int, more: int = 0) -> None:
        """Raise RequestError if it is too long with so many more tokens, and one to predict."""
        if len(self.ids) + more >= max_model_len:
            behind = f", and {more} for a thought" if more else ""
            has = f"{self.field}: has {len(self.ids)} tokens{behind}"
            message = f"{has}; together at most {max_model_len - 1}"
            raise RequestError(400, message, param=self.field, code="context_length_exceeded")
