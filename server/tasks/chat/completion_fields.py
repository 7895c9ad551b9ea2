"""The fields of text completions that have an effect; chat/fields.py lists the others."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.common.fields import Refused
from omnistage.server.tasks.chat.checks import check_sampling
from omnistage.server.tasks.chat.fields import OF_CHATS, REFUSED
from omnistage.server.tasks.chat.schema import MAX_CHOICES, MAX_TOP_LOGPROBS, Sampling
from omnistage.stage_configs.declared.sampling import Count, Flag

DEFAULT_TOKENS = 16  # OpenAI's


def _is_prompt(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(type(one) is int and 0 <= one < 1 << 31 for one in value)
    return isinstance(value, str) and bool(value)


class CompletionRequest(Sampling):
    """The body of POST /v1/completions."""

    # What is a chat's alone would have no effect here; a prompt's special tokens are added.
    refused: ClassVar[Refused] = {
        **OF_CHATS,
        **REFUSED,
        "add_special_tokens": (True,),
        "suffix": ("",),
    }

    prompt: str | list[Any]
    max_tokens: Annotated[Count, Field(ge=0, le=1 << 31)] | None = None
    logprobs: Annotated[Count, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: Flag | None = None
    best_of: Annotated[Count, Field(ge=1, le=MAX_CHOICES)] | None = None

    @field_validator("prompt", mode="plain")
    @classmethod
    def _prompts(cls, value: Any) -> Any:
        several = isinstance(value, list) and not (value and type(value[0]) is int)
        prompts = value if several else [value]
        if not 1 <= len(prompts) <= MAX_CHOICES or not all(map(_is_prompt, prompts)):
            raise ValueError(
                f"must be a text, a list of token ids, or a list of 1 to {MAX_CHOICES} of these, "
                "none of them empty"
            )
        return value

    @property
    def num_prompts(self) -> int:
        """Count the prompts: one may come without a list around it."""
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return 1 if is_one else len(self.prompt)

    @property
    def num_tokens(self) -> int:
        """Count the tokens that may be made for a prompt."""
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    def check(self) -> None:
        """Raise ApiError for fields that ask for what is not done, or that do not go together."""
        super().check()
        check_sampling(self, self.num_tokens)
        num_choices = self.n or 1
        if self.best_of not in (None, num_choices):
            raise unsupported("best_of", f"best_of {self.best_of} with n {num_choices}")
        if num_choices * self.num_prompts > MAX_CHOICES:
            raise invalid("n", f"times the number of prompts exceeds {MAX_CHOICES}")
        if self.num_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "must be at least 1 without echo")
        if self.echo and self.return_token_ids:
            raise unsupported("echo", "echo with return_token_ids")


COMPLETION_DONE = frozenset(CompletionRequest.model_fields)
