"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: vLLM's requests, for admins."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from omnistage.server.common.errors import ApiError
from omnistage.server.common.served import check_makes
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.endpoints.operation.admin import refuse_without_key
from omnistage.server.http.access.keys import LOAD_LORA, UNLOAD_LORA
from omnistage.server.http.request import JsonRoute
from omnistage.server.tasks.command_fields import (
    AddLora,
    LoadAdapter,
    OfStages,
    RemoveLora,
    UnloadAdapter,
)
from omnistage.server.tasks.commands import StageCommands


def routes(gateway: Gateway) -> APIRouter:
    """Both; who may ask is judged elsewhere."""
    router = APIRouter(route_class=JsonRoute, include_in_schema=False)
    commands, graph = StageCommands(gateway.runtime), gateway.runtime.graph
    # Adapters of the stage that texts begin in are models.
    entry = [graph.entry_of("text")] if "text" in graph.outputs else []

    async def send(command: str, asked: OfStages, done: str) -> PlainTextResponse:
        refuse_without_key(gateway)
        check_makes("text", graph.outputs, "text")
        try:
            await commands.send(command, asked)
        except ApiError as error:
            if error.param in ("name", "path"):
                error.param = f"lora_{error.param}"
            raise
        return PlainTextResponse(f"Success: LoRA adapter {done} successfully.")

    @router.post(LOAD_LORA, response_model=None)
    async def load(asked: LoadAdapter) -> PlainTextResponse:
        adding = AddLora(name=asked.lora_name, path=asked.lora_path, stages=entry or None)
        return await send("add_lora", adding, f"'{asked.lora_name}' added")

    @router.post(UNLOAD_LORA, response_model=None)
    async def unload(asked: UnloadAdapter) -> PlainTextResponse:
        removing = RemoveLora(name=asked.lora_name, stages=entry or None)
        return await send("remove_lora", removing, f"'{asked.lora_name}' removed")

    return router
