"""Admin endpoints: control of running stages."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter

from omnistage.server.endpoints.admin_fields import (
    AddLora,
    LoadWeights,
    OfStages,
    PinLora,
    RemoveLora,
    Sleep,
    StartProfile,
    Wake,
)
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.errors import ApiError, invalid
from omnistage.server.http.json_body import JsonRoute
from omnistage.server.runtime.command import check_command
from omnistage.server.runtime.draining import Draining
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stages.messages.to_gateway import Lora

Answer = Mapping[str, Any]


def routes(gateway: Gateway) -> APIRouter:
    """Everything below /admin; who may ask is judged elsewhere."""
    if not gateway.has_admin:
        return closed_routes()
    router = APIRouter(prefix="/admin", route_class=JsonRoute, include_in_schema=False)
    reading = APIRouter()  # no body, so none is read
    admin = Admin(gateway.runtime)

    @router.post("/sleep", response_model=None)
    async def sleep(asked: Sleep) -> Answer:
        return await admin.send_drained("sleep", asked)

    @router.post("/wake", response_model=None)
    async def wake(asked: Wake) -> Answer:
        return await admin.send_drained("wake", asked)

    @router.post("/load_weights", response_model=None)
    async def load_weights(asked: LoadWeights) -> Answer:
        return await admin.send_drained("load_weights", asked)

    @router.post("/lora/add", response_model=None)
    async def add_lora(asked: AddLora) -> Answer:
        return await admin.send("add_lora", asked)

    @router.post("/lora/remove", response_model=None)
    async def remove_lora(asked: RemoveLora) -> Answer:
        return await admin.send("remove_lora", asked)

    @router.post("/lora/pin", response_model=None)
    async def pin_lora(asked: PinLora) -> Answer:
        return await admin.send("pin_lora", asked)

    @router.post("/profile/start", response_model=None)
    async def start_profile(asked: StartProfile) -> Answer:
        return await admin.send("start_profile", asked)

    @router.post("/profile/stop", response_model=None)
    async def stop_profile(asked: OfStages) -> Answer:
        return await admin.send("stop_profile", asked)

    @router.post("/cache/clear", response_model=None)
    async def clear_cache(asked: OfStages) -> Answer:
        return await admin.send("clear_cache", asked)

    @reading.get("/sleeping", response_model=None)
    async def sleeping() -> Answer:
        return asleep(list(gateway.runtime.fleet.stages.values()))

    @reading.get("/lora", response_model=None)
    async def loras() -> Answer:
        return await admin.send("list_loras", OfStages())

    @reading.get("/cache", response_model=None)
    async def caches() -> Answer:
        return await admin.send("count_cache", OfStages())

    router.include_router(reading)
    return router


class Admin:
    """Hands commands to stages and puts their answers together."""

    def __init__(self, runtime: Runtime) -> None:
        self._fleet = runtime.fleet
        self._draining = Draining(runtime.fleet, runtime.flights)

    async def send(self, command: str, asked: OfStages) -> Answer:
        """Send a command to the stages that are meant; if none is, to those that take it."""
        links = self._named(asked) or self._accepting(command)
        send = self._fleet.commander.send
        sending = (send(link, command, asked.arguments) for link in links)
        answers = await asyncio.gather(*sending, return_exceptions=True)
        for link, answer in zip(links, answers, strict=True):
            if not isinstance(answer, BaseException) and link.record.loras is not None:
                self._note_loras(link, answer)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {"stages": dict(zip((link.name for link in links), answers, strict=True))}

    def _note_loras(self, link: StageLink, answer: Answer) -> None:
        if "loras" in answer:
            self._fleet.note_loras(link, msgspec.convert(answer["loras"], list[Lora]))

    async def send_drained(self, command: str, asked: OfStages) -> Answer:
        """Send it once no request is in the stages that are meant: all of the graph if none is."""
        links = self._named(asked) or list(self._fleet.stages.values())
        await self._draining.run(links, command, asked.arguments)
        return asleep(links)

    def _named(self, asked: OfStages) -> list[StageLink]:
        known = self._fleet.stages
        for index, name in enumerate(asked.stages or ()):
            if name not in known:
                allowed = ", ".join(known)
                raise invalid(f"stages[{index}]", f"is no stage; allowed: {allowed}")
        return [known[name] for name in dict.fromkeys(asked.stages or ())]

    def _accepting(self, command: str) -> list[StageLink]:
        """The stages that take a command; ApiError, with a reason of one of them, if none does."""
        links = self._fleet.stages.values()
        accepting = [link for link in links if not link.record.commands.get(command, "no")]
        if not accepting:
            refusing = [link for link in links if command in link.record.commands]
            check_command((refusing or list(links))[0], command)
        return accepting


def asleep(links: Sequence[StageLink]) -> Answer:
    """What of each stage sleeps."""
    return {"stages": {link.name: {"asleep": list(link.record.asleep)} for link in links}}


def closed_routes() -> APIRouter:
    """The routes where no admin key is configured."""
    router = APIRouter()

    @router.api_route("/admin/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def refuse(path: str) -> None:
        raise closed()

    return router


def refuse_without_key(gateway: Gateway) -> None:
    """Raise ApiError where no admin key is configured."""
    if not gateway.has_admin:
        raise closed()


def closed() -> ApiError:
    """The refusal where no admin key is configured."""
    message = "Admin endpoints need a server with an admin key: start it with --admin-key."
    return ApiError(403, message, code="admin_disabled")
