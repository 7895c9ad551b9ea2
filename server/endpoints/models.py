"""The models that the server offers: its graph's one, by each of its names, and its adapters."""

import time
from collections.abc import Mapping

from fastapi import APIRouter

from omnistage.server.common.served import model_not_found
from omnistage.server.endpoints.answers import Model, ModelList
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.tokens import OF_TOKENIZERS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_parts import chat_outputs
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.models.random_weights import note_of
from omnistage.stages.messages.to_gateway import Lora


def routes(gateway: Gateway) -> APIRouter:
    """GET /v1/models and /v1/models/{id}; ids may contain slashes."""
    router = APIRouter()
    names = gateway.runtime.graph.served_names
    cards = {name: card_of(gateway.runtime.graph, name) for name in names}

    @router.get("/v1/models", **described("List models", ModelList))
    async def models() -> JsonMap:
        return {"object": "list", "data": [*served().values()]}

    @router.get("/v1/models/{name:path}", **described("Retrieve a model", Model))
    async def model(name: str) -> JsonMap:
        for known, card in served().items():
            if name.strip("/") == known.strip("/"):
                return card
        raise model_not_found(name, names)

    def served() -> Mapping[str, JsonMap]:
        length = length_of(gateway.runtime)
        models = {name: {**card, **length} for name, card in cards.items()}
        loras = gateway.runtime.fleet.loras
        return models | {lora.name: adapter_card(lora, models[names[0]]) for lora in loras}

    return router


def length_of(runtime: Runtime) -> Mapping[str, int | None]:
    """Return vLLM's `max_model_len` of what reads the prompt, null until that has loaded."""
    graph = runtime.graph
    entry = next((graph.entry_of(name) for name in OF_TOKENIZERS if name in graph.outputs), None)
    return (
        {} if entry is None else {"max_model_len": runtime.fleet.one_of(entry).record.max_model_len}
    )


def adapter_card(lora: Lora, parent: JsonMap) -> JsonMap:
    """The entry of a LoRA adapter: as its model's, with that one's name and its own folder."""
    return {**parent, "id": lora.name, "root": lora.path, "parent": parent["id"]}


def card_of(graph: StageGraph, name: str) -> JsonMap:
    """The entry of one name of a graph's model in /v1/models."""
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "omnistage",
        "output_modalities": list(graph.outputs),
    }
    chats = chat_outputs(graph)
    if chats and chats != list(graph.outputs):
        card["chat_modalities"] = chats
    drawn = [output for output in ("image", "video") if output in graph.outputs]
    if written := [output for output in drawn if graph.writers(output)]:
        card["chat_only_modalities"] = written
    note = note_of(graph)
    return {**card, "note": note} if note else card
