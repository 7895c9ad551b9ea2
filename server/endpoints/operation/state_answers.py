"""Describes the state of a server, for the API's description."""

from typing import Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

CLOSED = ConfigDict(extra="forbid")  # no other keys


class Load(TypedDict):
    """Counts the requests that have a place, running or waiting."""

    server_load: int


class Readiness(TypedDict):
    """Every stage can serve."""

    ready: Literal[True]


@with_config(CLOSED)
class StageHealth(TypedDict):
    """The state of a stage, and what it holds for requests."""

    state: Literal["loading", "ready", "dead"]
    phase: Literal[
        "",
        "starting",
        "downloading",
        "reading weights",
        "compiling",
        "capturing graphs",
        "warming up",
    ]
    generation: int
    running: int
    waiting: int
    requests_total: int
    chunks_in: int
    chunks_out: int
    nan_steps: int
    restarts: int
    ended_by: str
    asleep: list[str]
    compiling: bool
    held: dict[str, int]


@with_config(CLOSED)
class Health(TypedDict):
    """Every stage by its name."""

    stages: dict[str, StageHealth]


class Version(TypedDict):
    """vLLM's version, as its own server tells it, and ours."""

    version: str
    omnistage: str
