"""The kinds of stages: where each one's class is, what it makes and what it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.rules.own_arguments import Owned


class Payload(StrEnum):
    """The payloads of edges."""

    TEXT = "text"  # words, as they are released to the client
    TOKENS = "tokens"  # token ids, as a model samples them
    ROWS = "rows"  # hidden states, one row a position
    CODES = "codes"  # codec frames
    ARGUMENTS = "arguments"  # arguments of a pipeline's call: rows, ids, numbers
    KV = "kv"  # those that are a model's cached keys and values, beside the others


Payloads = frozenset[Payload]


# What the engine of a vocoder takes.
VOCODER_ARGUMENTS = frozenset(
    {"num_slots", "dtype", "device", "load_format", "max_batch", "profile_folder"}
)


def payloads(*names: Payload) -> Payloads:
    """They together."""
    return frozenset(names)


@dataclass(frozen=True, slots=True)
class Offer:
    """The outputs of a stage for its model; `note`: a sentence on abilities that it leaves out."""

    outputs: frozenset[str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedReference:
    """The published implementation of a model, which `omnistage verify` compares answers with.

    `path`: module:function, which gets a ReferenceJob and returns Findings in a process of its own
    (messages/to_reference.py). `needs`: the packages of Python without which it cannot start.
    """

    path: str
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GivenArguments:
    """The arguments that a kind's stages give to the pipeline after them.

    `replaces`: the components of the pipeline that are not loaded then. `blank`: module:function,
    which makes arguments of no meaning for the pipeline's warm-up. It gets the pipeline's folder or
    hub name and the other arguments of the call, and returns numbers and arrays of float32 or
    int64 by their names, the prompt among them if the pipeline is called with one.
    """

    replaces: tuple[str, ...]
    blank: str


@dataclass(frozen=True, slots=True)
class Kind:
    """`path`: module:Class. `engine_takes_feed`: its engine, not its process, reads the edge.

    `makes`: what it can send along its edges. `takes`: what one edge may bring it, all payloads of
    a choice together; none: it has no edges to it. `is_entry`: requests may come to it from the
    gateway. `joins`: it may have several edges to it, and serves a request when all of them have
    announced it. `samples`: whether a request can set its sampling by `stage_params`. As an entry,
    `reads_out`: it has a given text spoken as it is; `hears`: its chats take sound;
    `hears_videos`: that of videos, too.
    `feeds_itself`: a channel goes from its process to its own engine. `is_parallel`: its engine is
    vLLM's, which several GPUs may share by its parallel sizes. `is_pipeline`: its layers may be cut
    into the ranks of a pipeline also if it has an edge. Others use one GPU.
    `arguments`: the names of its engine's, where that is not vLLM. `sets`: those of vLLM's that its
    stages set themselves, beside those of every stage (own_arguments.py). `stores_voices`: it keeps
    what it computes of the sounds of voices in the folder that its option `voices` names.

    `chooses`: its answer to a chat may be an image, which the stage after it makes of arguments, or
    words, and then that stage makes none.

    `offer`: reads from a checkpoint and the engine's arguments what of `outputs` a model makes. It
    returns None if that is not known, and raises ValueError if none of it is served.

    `reference`: what the model of its stage, and of those after it, is compared with. `exact`: keys
    of the graph file with which its stage computes as a reference does, such as engine.dtype.

    `gives`: of a kind that makes `arguments`, and of no other: those of the pipeline after it.

    `needs`: packages of Python that it cannot start without, and that not every kind needs.
    `uses`: others, each with what is lost without it.
    """

    path: str
    outputs: frozenset[str]
    engine_takes_feed: bool = False
    samples: bool = True
    reads_out: bool = False
    feeds_itself: bool = False
    hears: bool = False
    hears_videos: bool = False
    is_parallel: bool = False
    is_pipeline: bool = False
    makes: Payloads = frozenset()
    takes: tuple[Payloads, ...] = ()
    is_entry: bool = True
    joins: bool = False
    needs: tuple[str, ...] = ()
    uses: Mapping[str, str] = field(default_factory=dict)
    arguments: frozenset[str] = frozenset()
    sets: Owned = field(default_factory=dict)
    stores_voices: bool = False
    offer: Callable[[Checkpoint, JsonMap], Offer | None] | None = None
    reference: PublishedReference | None = None
    exact: JsonMap = field(default_factory=dict)
    gives: GivenArguments | None = None
    chooses: bool = False

    def __post_init__(self) -> None:
        if (self.gives is not None) != (Payload.ARGUMENTS in self.makes):
            raise ValueError(f"{self.path}: `gives` is of a kind that makes arguments")

    @property
    def has_ranks(self) -> bool:
        """Returns whether its denoisers may be spread over several GPUs, by arguments of its
        engine.
        """
        return {"parallel", "guidance_ranks"} <= self.arguments


def vocoder_kind(path: str, exact: JsonMap | None = None) -> Kind:
    """Return the kind of a stage that makes sound of codec frames: the last of a talker's graph."""
    return Kind(
        path,
        frozenset({"audio"}),
        samples=False,
        takes=(payloads(Payload.CODES),),
        is_entry=False,
        arguments=VOCODER_ARGUMENTS,
        exact=exact or {},
    )
