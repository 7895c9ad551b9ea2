"""The models that the server offers: its graph's one, by each of its names, and its adapters."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from omnistage.server.endpoints.answers import Model, ModelList
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described
from omnistage.server.http.served import model_not_found
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.to_gateway import Lora


def routes(gateway: Gateway) -> APIRouter:
    """GET /v1/models and /v1/models/{id}; ids may contain slashes."""
    router = APIRouter()
    names = gateway.runtime.graph.served_names
    cards = {name: card_of(gateway.runtime.graph, name) for name in names}

    @router.get("/v1/models", **described("List models", ModelList))
    async def models() -> Mapping[str, Any]:
        return {"object": "list", "data": [*cards.values(), *adapters().values()]}

    @router.get("/v1/models/{name:path}", **described("Retrieve a model", Model))
    async def model(name: str) -> Mapping[str, Any]:
        for served, card in {**adapters(), **cards}.items():
            if name.strip("/") == served.strip("/"):
                return card
        raise model_not_found(name, names)

    def adapters() -> Mapping[str, Mapping[str, Any]]:
        loras = gateway.runtime.fleet.loras
        return {lora.name: adapter_card(lora, cards[names[0]]) for lora in loras}

    return router


def adapter_card(lora: Lora, parent: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry of a LoRA adapter: as its model's, with that one's name and its own folder."""
    return {**parent, "id": lora.name, "root": lora.path, "parent": parent["id"]}


def card_of(graph: StageGraph, name: str) -> Mapping[str, Any]:
    """The entry of one name of a graph's model in /v1/models."""
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "omnistage",
        "output_modalities": list(graph.outputs),
    }
    return {**card, "note": graph.note} if graph.note else card
