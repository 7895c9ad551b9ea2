"""Over how many ranks a stage's denoisers are spread, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omnistage.stage_configs.rules.parallel import TILES, num_ranks, ranks_problem
from omnistage.stages.diffusion.loading.engine_options import EngineOptions
from omnistage.stages.worker.extension import extension_of


@dataclass(frozen=True, slots=True)
class RankOptions(EngineOptions):
    """Engine arguments: sizes of Diffusers' parallelism, groups for guidance, more methods."""

    parallel: Mapping[str, int] = field(default_factory=dict)
    guidance_ranks: int = 1
    worker_extension_cls: str = ""

    def __post_init__(self) -> None:
        given = {"parallel": self.parallel, "guidance_ranks": self.guidance_ranks}
        found = ranks_problem((), given)
        if found is not None:
            message, place = found
            raise ValueError(f"{'.'.join(place[1:])}: {message}")
        extension_of(self.worker_extension_cls)

    @property
    def size(self) -> int:
        """All ranks, the engine's own process among them."""
        return num_ranks({"parallel": self.parallel, "guidance_ranks": self.guidance_ranks})

    @property
    def is_used(self) -> bool:
        """Returns whether there is more than one, or more than they do by themselves."""
        return self.size > 1 or bool(self.worker_extension_cls)

    @property
    def group_size(self) -> int:
        """The ranks that compute one call together."""
        return self.size // self.guidance_ranks

    @property
    def ulysses(self) -> int:
        """Ranks that exchange heads for positions."""
        return self.parallel.get("ulysses", 1)

    @property
    def ring(self) -> int:
        """Ranks that hand keys and values on."""
        return self.parallel.get("ring", 1)

    @property
    def tensor(self) -> int:
        """Ranks that hold parts of each weight."""
        return self.parallel.get("tensor", 1)

    @property
    def vae(self) -> int:
        """The first ranks, which share the tiles of a decoding."""
        return self.parallel.get(TILES, 1)

    @property
    def shard(self) -> int:
        """Ranks that hold a part of each weight, and gather them block by block."""
        return self.parallel.get("shard", 1)

    @property
    def plan(self) -> str:
        """The attribute of a denoiser's class that says how it is spread; none is needed: empty."""
        if self.tensor > 1:
            return "_tp_plan"
        return "_cp_plan" if self.ulysses * self.ring > 1 else ""
