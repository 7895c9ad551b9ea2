"""Commands to the stages as /admin has them, and weights of this process for load_weights."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.common.json_text import check_values
from omnistage.server.offline.engine import Engine
from omnistage.server.offline.errors import as_ours
from omnistage.server.tasks.command_fields import LoadWeights, OfStages, Scale, Wake
from omnistage.server.tasks.commands import Answer
from omnistage.server.tasks.pieces import Adapter
from omnistage.stage_configs.checkpoint import PIPELINE, Checkpoint

if TYPE_CHECKING:
    from omnistage.stages.device.shared_weights import Weights

T = TypeVar("T", bound=OfStages | Scale)

Asleep = dict[str, tuple[str, ...]]  # by stage, what of it sleeps
Adapters = dict[str, tuple[Adapter, ...]]  # by stage
PathLike = str | os.PathLike[str]

NO_CONFIG = f"as names and tensors are for models with a config.json or {PIPELINE}; give a folder"
SEVERAL_MODELS = "have models of their own; name those of one model"


def asleep(engine: Engine) -> Asleep:
    """Returns what of each stage sleeps now."""
    stages = engine.runtime.fleet.stages if engine.is_open else {}
    return {name: tuple(link.record.asleep) for name, link in stages.items()}


async def change_sleep(
    engine: Engine, command: str, kind: type[Wake], fields: Mapping[str, object]
) -> Asleep:
    """Put stages to sleep, or wake them, once their requests have ended."""
    with command_of(engine):
        return asleep_of(await engine.commands.send_drained(command, asked(kind, fields)))


async def change_replicas(engine: Engine, fields: Mapping[str, object]) -> tuple[str, ...]:
    """Add replicas to a stage, or take some away; those that it has now."""
    with command_of(engine):
        scaling = asked(Scale, fields)
        answer = await engine.commands.scale(scaling)
    return tuple(answer["stages"][scaling.stage]["replicas"])


async def change_adapters(
    engine: Engine, command: str, kind: type[OfStages], fields: Mapping[str, object]
) -> Adapters:
    """Add, remove, pin or list LoRA adapters; those that each stage has now."""
    with command_of(engine):
        answer = await engine.commands.send(command, asked(kind, fields))
    loras = {name: result.get("loras", ()) for name, result in answer["stages"].items()}
    return msgspec.convert(loras, Adapters)


async def load_weights(
    engine: Engine, weights: "PathLike | Weights | None", fields: Mapping[str, object]
) -> Asleep:
    """Load a folder; names and tensors are written to one that is gone afterwards."""
    with command_of(engine):
        if weights is None:
            return await load_folder(engine, fields)
        if isinstance(weights, str | os.PathLike):
            return await load_folder(engine, {**fields, "path": whole(weights)})
        model = await model_folder(engine, asked(LoadWeights, fields))
        async with shared_folder(weights, model, engine.directory) as folder:
            return await load_folder(engine, {**fields, "path": str(folder)})


async def load_folder(engine: Engine, fields: Mapping[str, object]) -> Asleep:
    """Have stages load the folder at `path`, without it the last one again; raises ApiError."""
    loading = asked(LoadWeights, fields)
    return asleep_of(await engine.commands.send_drained("load_weights", loading))


async def model_folder(engine: Engine, loading: LoadWeights) -> Path | None:
    """Where the model of these stages is; ApiError if they cannot load others of its weights.

    None: it is a pipeline, which wants nothing but the weights.
    """
    stages = engine.commands.taken_by("load_weights", loading)
    first, *others = {engine.graph.model_of(name) for name in stages}
    if others:
        raise invalid("stages", SEVERAL_MODELS)
    checkpoint = Checkpoint(first)
    folder = await asyncio.to_thread(lambda: checkpoint.folder)
    if folder is None and not await asyncio.to_thread(checkpoint.has, PIPELINE):
        raise invalid("weights", NO_CONFIG)
    return folder


@asynccontextmanager
async def shared_folder(
    weights: "Weights", model: Path | None, directory: Path
) -> AsyncGenerator[Path, None]:
    """A folder of weights below a directory in memory, written and removed beside the loop."""
    kept, stopped = ExitStack(), threading.Event()

    def write() -> Path:
        from omnistage.stages.device.shared_weights import shared_weights

        return kept.enter_context(shared_weights(until(stopped, weights), model, str(directory)))

    writing = asyncio.create_task(asyncio.to_thread(write))
    try:
        yield await asyncio.shield(writing)
    finally:
        stopped.set()
        await asyncio.wait({writing})
        await asyncio.to_thread(kept.close)


def until(stopped: threading.Event, weights: "Weights") -> "Weights":
    """The weights, but no more of them once it is set."""
    for one in weights:
        if stopped.is_set():
            return
        yield one


@contextmanager
def command_of(engine: Engine) -> Iterator[None]:
    """Yields the stages that take a command, and turns its errors into ours."""
    with as_ours():
        engine.check_open()
        yield


def asked(kind: type[T], fields: Mapping[str, object]) -> T:
    """The checked fields of a command; raises ApiError."""
    checked = parse(kind, fields)
    check_values(checked.model_dump())
    return checked


def asleep_of(answer: Answer) -> Asleep:
    """Returns what a command has left asleep."""
    return {name: tuple(one["asleep"]) for name, one in answer["stages"].items()}


def whole(path: PathLike) -> str:
    """A path from the root: a stage keeps the working folder that it was started in."""
    return os.path.abspath(path)
