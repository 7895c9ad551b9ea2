"""The options of token2wav in a graph file: how an answer is cut."""

from typing import Annotated, Literal

import msgspec

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.qwen2_5_omni.token2wav.bigvgan import REACH
from omnistage.stages.qwen2_5_omni.token2wav.flow_schedule import Schedule

WINDOW_BLOCKS = 12  # of the vocoder, where the flow has no chunks

NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Token2WavOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stage's `options`.

    `chunk`: how many blocks of 12 codes are solved at once, the last number for ever; or the whole
    answer, which is exact and waits for its end. `ahead`: how many blocks after them a chunk sees.
    `context`: by how many mel frames the vocoder is behind; 34 is all that its samples depend on,
    and what a whole answer has.
    """

    chunk: Annotated[list[Positive], msgspec.Meta(min_length=1)] | Literal["whole"] = msgspec.field(
        default_factory=lambda: [2, 3, 6]
    )
    ahead: NotNegative = 1
    context: NotNegative = 20

    @classmethod
    def of(cls, options: JsonMap) -> "Token2WavOptions":
        """From the graph; raises ValueError for what token2wav does not know."""
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"options of token2wav: {error}") from None

    @property
    def schedule(self) -> Schedule:
        """Returns what they mean."""
        if self.chunk == "whole":
            return Schedule.whole(WINDOW_BLOCKS, REACH)
        return Schedule.streamed(tuple(self.chunk), self.ahead, self.context)
