"""How a stage samples: the parameters, their bounds, and the defaults of what was not asked for."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from omnistage.stage_configs.json_types import Json, JsonMap

MIN_SEED, MAX_SEED = -(1 << 63), (1 << 63) - 1

# As JSON has them: a string or a boolean is no number, and no number is infinite.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]

Temperature = Annotated[Number, Field(ge=0, le=2)]
TopP = Annotated[Number, Field(gt=0, le=1)]
TopK = Annotated[Count, Field(ge=-1, le=1 << 31)]
RepetitionPenalty = Annotated[Number, Field(gt=0, le=10)]
Seed = Annotated[Count, Field(ge=MIN_SEED, le=MAX_SEED)]
NumTokens = Annotated[Count, Field(ge=1, le=1 << 31)]
MinTokens = Annotated[Count, Field(ge=0, le=1 << 31)]

Parameter = int | float | bool


class StageParameters(BaseModel):
    """Sampling of one stage; in a request it wins over the request's own fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    max_tokens: NumTokens | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: Flag | None = None

    @model_validator(mode="after")
    def _fits(self) -> "StageParameters":
        if None not in (self.min_tokens, self.max_tokens) and self.min_tokens > self.max_tokens:  # type: ignore[operator]
            raise ValueError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        return self

    @property
    def given(self) -> dict[str, Parameter]:
        """Returns the parameters that have a value."""
        return self.model_dump(exclude_none=True)


def with_defaults(defaults: JsonMap, asked: JsonMap) -> Json:
    """Returns what was asked for, and the default of the rest; `asked` may have other fields, too.

    A default number of tokens that contradicts what was asked for is moved as far as it must be.
    """
    merged = {**defaults, **asked}
    least, most = merged.get("min_tokens"), merged.get("max_tokens")
    if least is not None and most is not None and least > most:
        if "min_tokens" not in asked:
            merged["min_tokens"] = most
        elif "max_tokens" not in asked:
            merged["max_tokens"] = least
    return merged
