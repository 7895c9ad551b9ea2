"""Replicas of a stage: each is one running copy, a process with its engine."""

from dataclasses import dataclass

MARK = "@"  # between a stage's name and a replica's number: no stage's own name has it
MAX_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a stage, and its GPUs; where a stage has one only, it has the stage's name."""

    name: str
    gpus: tuple[int, ...] = ()

    @property
    def stage(self) -> str:
        """The stage that it is a copy of."""
        return stage_of(self.name)


def replica_name(stage: str, number: int) -> str:
    """The name of one of several."""
    return f"{stage}{MARK}{number}"


def stage_of(name: str) -> str:
    """The stage that a replica is a copy of."""
    return name.partition(MARK)[0]


def number_of(name: str) -> int:
    """Returns which of its stage's replicas it is: the only one is 0."""
    return int(name.partition(MARK)[2] or 0)
