"""The kinds of stages: where each one's class is, and what it makes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """`path`: module:Class. `engine_takes_feed`: its engine, not its process, reads the edge.

    `samples`: whether a request can set its sampling by `stage_params`. As a graph's entry,
    `reads_out`: it has a given text spoken as it is; `hears`: its chats take sound. `is_parallel`:
    its engine is vLLM's, which several GPUs may share by its parallel sizes; others use one GPU.
    """

    path: str
    outputs: frozenset[str]
    engine_takes_feed: bool = False
    samples: bool = True
    reads_out: bool = False
    hears: bool = False
    is_parallel: bool = False
