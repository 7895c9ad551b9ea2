"""LoRA adapters of an engine: which are there, and who uses them.

vLLM loads an adapter again that a request names and that it does not have, so one is removed only
while no request uses it. It also takes more adapters into a step than it has places for, if some
are pinned and not in use: here a request waits until there is a place for its adapter.

On a CPU vLLM 0.32 computes requests without an adapter with the one in its last place, unless no
request of the step has any. So an engine on a CPU has one place more, which stays empty: adapters
beyond the others are taken out of the engine here before one comes in.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from omnistage.stages.device.stored_weights import Shapes
from omnistage.stages.messages.to_gateway import Lora
from omnistage.stages.vllm.adapters.adapter_folder import adapter_rank, refused
from omnistage.stages.vllm.compat import AsyncLLM, LoRARequest
from omnistage.stages.worker.failure import RequestError


@dataclass(slots=True)
class TextAdapter:
    """An adapter that an engine has loaded."""

    request: LoRARequest
    rank: int
    pinned: bool = False


class Adapters:
    """Adds, removes and pins them; `requests` is where vLLM's serving classes look one up."""

    def __init__(
        self,
        engine: AsyncLLM,
        model: str,
        base: Shapes,
        requests: MutableMapping[str, object],
        has_spare: bool = False,
    ) -> None:
        """`model`: its name, which no adapter may have. `base`: as for `adapter_rank`.

        `has_spare`: whether the engine's last place is to stay empty.
        """
        self._has_spare = has_spare
        self._inside: dict[str, None] = {}  # with a spare: those in the engine, the last used last
        self._moving = asyncio.Lock()
        self._changing = asyncio.Lock()  # commands come one after the other
        self._engine = engine
        self._model = model
        self._base = base
        self._requests = requests
        self._known: dict[str, TextAdapter] = {}
        self._used: Counter[str] = Counter()  # by requests, those that wait among them
        self._running: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._serial = count(1)
        self._taken: set[str] = set()  # vLLM's names for adapters, now or before

    @property
    def refusal(self) -> str:
        """Why the engine takes none; empty if it does."""
        return "" if self._limits is not None else "its engine has no enable_lora: true"

    @property
    def _limits(self) -> Any:
        return self._engine.vllm_config.lora_config

    @property
    def _num_places(self) -> int:
        return int(self._limits.max_loras) - self._has_spare

    @property
    def listed(self) -> list[Lora]:
        """All of them, in the order in which they were added."""
        return [
            Lora(name, one.request.lora_path, one.rank, one.pinned, self._used[name])
            for name, one in self._known.items()
        ]

    @property
    def loaded(self) -> list[LoRARequest]:
        """Returns what the engine calls them, in the order in which they were added."""
        return [one.request for one in self._known.values()]

    # Commands

    async def add_all(self, modules: Mapping[str, str]) -> None:
        """Adds the adapters of the graph file by name; ValueError for one that cannot be added."""
        if modules and self.refusal:
            raise ValueError(f"lora_modules: {self.refusal}")
        for name, path in modules.items():
            try:
                await self.add(name, path)
            except RequestError as error:
                raise ValueError(f"lora_modules.{name}: {error.message}") from error

    async def add(self, name: str, path: str, pinned: bool = False) -> None:
        """Load one; nothing has changed if it is refused."""
        async with self._changing:
            await self._add(name, path, pinned)

    async def _add(self, name: str, path: str, pinned: bool) -> None:
        self._check_new(name, pinned)
        rank = adapter_rank(path, self._limits.max_lora_rank, self._base)
        async with self._place(name):
            self._check_new(name, pinned)
            request = LoRARequest(self._engine_name(name), next(self._serial), path)
            async with self._moving:
                await self._make_room()
                await self._load(request)
                self._inside[name] = None
            self._known[name] = TextAdapter(request, rank)
            self._requests[name] = request
            if pinned:
                await self._pin(self._known[name])

    def _check_new(self, name: str, pinned: bool) -> None:
        if name == self._model:
            raise RequestError(409, f"{name!r} is the model itself", param="name")
        if name in self._known:
            raise RequestError(409, f"the LoRA {name!r} is there already", param="name")
        num_places, num_pinned = self._num_places, len(self._pinned) + pinned
        if len(self._known) + 1 > num_places and num_pinned >= num_places:
            raise self._full(num_places)

    def _engine_name(self, name: str) -> str:
        """One that no adapter had before: vLLM's prefix cache knows adapters by their names."""
        number = next(n for n in count(1) if f"{name}:{n}" not in self._taken)
        self._taken.add(f"{name}:{number}")
        return f"{name}:{number}"

    async def _load(self, request: LoRARequest) -> None:
        try:
            await self._engine.add_lora(request)
        except Exception as error:  # whatever a file makes vLLM raise
            await self._engine.remove_lora(request.lora_int_id)  # what of it is there
            raise refused(f"{request.lora_path} is no LoRA for this model: {error}") from error

    async def remove(self, name: str) -> None:
        """Unload one that no request uses."""
        async with self._changing:
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        one = self._known_by(name)
        self._check_unused(name)
        del self._known[name], self._requests[name]
        self._inside.pop(name, None)
        await self._engine.remove_lora(one.request.lora_int_id)
        await self._notify()

    async def pin(self, name: str, pinned: bool) -> None:
        """Keep one in its place on the device, or no longer."""
        async with self._changing:
            await self._set_pinned(name, pinned)

    async def _set_pinned(self, name: str, pinned: bool) -> None:
        one = self._known_by(name)
        if one.pinned == pinned:
            return
        if not pinned:
            self._check_unused(name)  # vLLM unpins by removing
            await self._engine.remove_lora(one.request.lora_int_id)
            one.pinned = False
            await self._engine.add_lora(one.request)
            await self._notify()
            return
        num_places = self._num_places
        if len(self._known) > num_places and len(self._pinned) + 1 >= num_places:
            raise self._full(num_places)
        async with self._place(name):
            await self._bring(name)
            await self._pin(one)

    async def _pin(self, one: TextAdapter) -> None:
        await self._engine.add_lora(one.request)  # a lane may have put it out for others
        await self._engine.pin_lora(one.request.lora_int_id)
        one.pinned = True

    async def restore(self) -> None:
        """Give the engine all of them again: new weights have made it forget them."""
        if self.refusal:
            return
        for number in await self._engine.list_loras():
            await self._engine.remove_lora(number)
        self._inside.clear()
        for name, one in self._known.items():
            if self._has_spare and not one.pinned:
                continue  # the next request brings it
            await self._engine.add_lora(one.request)
            self._inside[name] = None
            if one.pinned:
                await self._pin(one)

    def _check_unused(self, name: str) -> None:
        if self._used[name]:
            message = f"{self._used[name]} requests use the LoRA {name!r}"
            raise RequestError(409, message, param="name", code="lora_in_use")

    def _known_by(self, name: str) -> TextAdapter:
        if name in self._known:
            return self._known[name]
        names = ", ".join(sorted(self._known)) or "none"
        message = f"the LoRA {name!r} is unknown; loaded: {names}"
        raise RequestError(400, message, param="name", code="invalid_value")

    @property
    def _pinned(self) -> set[str]:
        return {name for name, one in self._known.items() if one.pinned}

    def _full(self, num_places: int) -> RequestError:
        message = (
            f"pinned LoRAs would leave no place for others; its engine's max_loras is {num_places}"
        )
        return RequestError(409, message, param="name", code="lora_limit")

    # Requests

    @asynccontextmanager
    async def using(self, name: str | None) -> AsyncGenerator[None, None]:
        """While a request runs; it waits for a place. RequestError if there is no such adapter."""
        if name is None:
            yield
            return
        if name not in self._known:
            message = f"The model {name!r} does not exist: it was a LoRA that is gone."
            raise RequestError(404, message, param="model", code="model_not_found")
        self._used[name] += 1
        try:
            async with self._place(name):
                await self._bring(name)
                yield
        finally:
            self._used[name] -= 1

    async def _bring(self, name: str) -> None:
        """Have an adapter that has a place in the engine; without a spare vLLM does it."""
        if not self._has_spare:
            return
        async with self._moving:
            if name in self._inside:
                del self._inside[name]
            else:
                await self._make_room()
                await self._engine.add_lora(self._known[name].request)
            self._inside[name] = None

    async def _make_room(self) -> None:
        """For one more, in an engine with a spare."""
        if not self._has_spare or len(self._inside) < self._num_places:
            return
        kept = {name for name, number in self._running.items() if number} | self._pinned
        oldest = next(name for name in self._inside if name not in kept)
        del self._inside[oldest]
        await self._engine.remove_lora(self._known[oldest].request.lora_int_id)

    @asynccontextmanager
    async def _place(self, name: str) -> AsyncGenerator[None, None]:
        """A place on the device: as many adapters as those that run and those that are pinned."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_place(name))
            self._running[name] += 1
        try:
            yield
        finally:
            self._running[name] -= 1
            await self._notify()

    def _has_place(self, name: str) -> bool:
        running = {one for one, number in self._running.items() if number}
        return len(running | self._pinned | {name}) <= self._num_places

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
