"""How a request wants the parts of its pipeline: with which adapters, with a step cache or not."""

from collections.abc import Callable
from dataclasses import dataclass, field

# The adapters of one call and their scales, in the order in which they are applied.
Scales = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """Equal for requests whose calls may be one.

    `switch` makes a part of the pipeline so, in the thread that is about to run it.
    """

    adapters: Scales = ()
    has_step_cache: bool = True
    switch: "Callable[[str, Setting], None] | None" = field(default=None, compare=False)

    def put(self, name: str) -> None:
        """Before a method of a part runs: `name` is the part's, and may have the method's after it.

        Parts that are as they should be cost a comparison.
        """
        if self.switch is not None:
            self.switch(name.partition(".")[0], self)


DEFAULT = Setting()
