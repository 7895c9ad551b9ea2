"""Admin endpoints: control of running stages."""

from fastapi import APIRouter

from omnistage.server.common.errors import ApiError
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.request import JsonRoute
from omnistage.server.tasks.command_fields import (
    AddLora,
    LoadWeights,
    OfStages,
    PinLora,
    RemoveLora,
    Rpc,
    Scale,
    Sleep,
    StartProfile,
    Wake,
)
from omnistage.server.tasks.commands import Answer, StageCommands, asleep


def routes(gateway: Gateway) -> APIRouter:
    """Everything below /admin; who may ask is judged elsewhere."""
    if not gateway.options.admin_keys:
        return closed_routes()
    router = APIRouter(prefix="/admin", route_class=JsonRoute, include_in_schema=False)
    reading = APIRouter()  # no body, so none is read
    commands = StageCommands(gateway.runtime)

    @router.post("/sleep", response_model=None)
    async def sleep(asked: Sleep) -> Answer:
        return await commands.send_drained("sleep", asked)

    @router.post("/wake", response_model=None)
    async def wake(asked: Wake) -> Answer:
        return await commands.send_drained("wake", asked)

    @router.post("/load_weights", response_model=None)
    async def load_weights(asked: LoadWeights) -> Answer:
        return await commands.send_drained("load_weights", asked)

    @router.post("/lora/add", response_model=None)
    async def add_lora(asked: AddLora) -> Answer:
        return await commands.send("add_lora", asked)

    @router.post("/lora/remove", response_model=None)
    async def remove_lora(asked: RemoveLora) -> Answer:
        return await commands.send("remove_lora", asked)

    @router.post("/lora/pin", response_model=None)
    async def pin_lora(asked: PinLora) -> Answer:
        return await commands.send("pin_lora", asked)

    @router.post("/profile/start", response_model=None)
    async def start_profile(asked: StartProfile) -> Answer:
        return await commands.send("start_profile", asked)

    @router.post("/profile/stop", response_model=None)
    async def stop_profile(asked: OfStages) -> Answer:
        return await commands.send("stop_profile", asked)

    @router.post("/cache/clear", response_model=None)
    async def clear_cache(asked: OfStages) -> Answer:
        return await commands.send("clear_cache", asked)

    @router.post("/rpc", response_model=None)
    async def rpc(asked: Rpc) -> Answer:
        return await commands.send("rpc", asked)

    @router.post("/scale", response_model=None)
    async def scale(asked: Scale) -> Answer:
        return await commands.scale(asked)

    @reading.get("/sleeping", response_model=None)
    async def sleeping() -> Answer:
        return asleep(list(gateway.runtime.fleet.stages.values()))

    @reading.get("/lora", response_model=None)
    async def loras() -> Answer:
        return await commands.send("list_loras", OfStages())

    @reading.get("/cache", response_model=None)
    async def caches() -> Answer:
        return await commands.send("count_cache", OfStages())

    router.include_router(reading)
    return router


def closed_routes() -> APIRouter:
    """The routes where no admin key is configured."""
    router = APIRouter()

    @router.api_route("/admin/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def refuse(path: str) -> None:
        raise closed()

    return router


def refuse_without_key(gateway: Gateway) -> None:
    """Raise ApiError where no admin key is configured."""
    if not gateway.options.admin_keys:
        raise closed()


def closed() -> ApiError:
    """The refusal where no admin key is configured."""
    message = "Admin endpoints need a server with an admin key: start it with --admin-key."
    return ApiError(403, message, code="admin_disabled")
