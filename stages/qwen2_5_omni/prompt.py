"""What the thinker tells the talker of a prompt."""

import msgspec

from omnistage.stages.vllm.rope import Grid


class ThinkerPrompt(msgspec.Struct, frozen=True):
    """Where the images and videos of a prompt are; its ids travel beside it."""

    grids: list[Grid] = []
