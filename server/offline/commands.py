"""Commands to the stages as /admin has them, and weights of this process for load_weights."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from omnistage.server.common.errors import invalid
from omnistage.server.common.fields import parse
from omnistage.server.common.json_text import check_values
from omnistage.server.offline.engine import Engine
from omnistage.server.offline.errors import as_ours
from omnistage.server.tasks.command_fields import (
    AddLora,
    LoadWeights,
    OfStages,
    PinLora,
    RemoveLora,
    Scale,
    Sleep,
    Wake,
)
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


class CommandMethods:
    """Methods that have the stages do what /admin has them do."""

    _engine: Engine

    @property
    def sleeping(self) -> Asleep:
        """Returns, by stage, what of it sleeps."""
        stages = self._engine.runtime.fleet.stages if self._engine.is_open else {}
        return {name: tuple(link.record.asleep) for name, link in stages.items()}

    async def sleep(
        self,
        level: int = 1,
        tags: Sequence[str] | None = None,
        stages: Sequence[str] | None = None,
    ) -> Asleep:
        """Let requests end, then put weights into the host's memory (1), or drop them (2).

        Fields, refusals and what is meant without `stages` are those of /admin, for all commands.
        """
        said = {"level": level, "tags": tags, "stages": stages}
        return await self._drained("sleep", Sleep, said)

    async def wake(
        self, tags: Sequence[str] | None = None, stages: Sequence[str] | None = None
    ) -> Asleep:
        """Put back what sleeps, or the parts of it that `tags` name."""
        return await self._drained("wake", Wake, {"tags": tags, "stages": stages})

    async def load_weights(
        self,
        weights: "PathLike | Weights | None" = None,
        stages: Sequence[str] | None = None,
    ) -> Asleep:
        """Load a folder, or pairs of a name and a tensor; None: the last folder again.

        Pairs are all of a checkpoint, by its own names; of a pipeline all of some components, as
        `transformer.proj_out.weight`. They are read in another thread, and copied to a folder in
        shared memory that is gone afterwards.
        """
        engine, said = self._engine, {"stages": stages}
        with command_of(engine):
            if weights is None:
                return await load_folder(engine, said)
            if isinstance(weights, str | os.PathLike):
                return await load_folder(engine, {**said, "path": whole(weights)})
            model = await model_folder(engine, asked(LoadWeights, said))
            async with shared_folder(weights, model, engine.directory) as folder:
                return await load_folder(engine, {**said, "path": str(folder)})

    async def scale(self, stage: str, replicas: int) -> tuple[str, ...]:
        """Have so many replicas of a stage, without losing a request; those that it has now."""
        with command_of(self._engine):
            scaling = asked(Scale, {"stage": stage, "replicas": replicas})
            answer = await self._engine.commands.scale(scaling)
        return tuple(answer["stages"][scaling.stage]["replicas"])

    async def add_lora(
        self,
        name: str,
        path: PathLike,
        *,
        weight_name: str | None = None,
        pinned: bool = False,
        stages: Sequence[str] | None = None,
    ) -> Adapters:
        """Add a LoRA adapter; by stage, those that it has now."""
        said = {"name": name, "path": whole(path), "weight_name": weight_name, "pinned": pinned}
        return await self._adapters("add_lora", AddLora, {**said, "stages": stages})

    async def remove_lora(self, name: str, stages: Sequence[str] | None = None) -> Adapters:
        """Remove an adapter that no request uses."""
        said = {"name": name, "stages": stages}
        return await self._adapters("remove_lora", RemoveLora, said)

    async def pin_lora(
        self, name: str, pinned: bool = True, stages: Sequence[str] | None = None
    ) -> Adapters:
        """Keep an adapter from being evicted, or no longer."""
        said = {"name": name, "pinned": pinned, "stages": stages}
        return await self._adapters("pin_lora", PinLora, said)

    async def loras(self) -> Adapters:
        """Returns the adapters of each stage that takes some."""
        return await self._adapters("list_loras", OfStages, {})

    async def _drained(
        self, command: str, kind: type[Wake], fields: Mapping[str, object]
    ) -> Asleep:
        """Have it done once the stages' requests have ended."""
        with command_of(self._engine):
            answer = await self._engine.commands.send_drained(command, asked(kind, fields))
        return asleep_of(answer)

    async def _adapters(
        self, command: str, kind: type[OfStages], fields: Mapping[str, object]
    ) -> Adapters:
        with command_of(self._engine):
            answer = await self._engine.commands.send(command, asked(kind, fields))
        loras = {name: result.get("loras", ()) for name, result in answer["stages"].items()}
        return msgspec.convert(loras, Adapters)


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
