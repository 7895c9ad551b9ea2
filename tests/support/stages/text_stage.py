"""A stage of one text model in the test's own process, with the gateway's end of its channel."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from support.api.bodies import body_of
from support.models.tiny_text import likeliest
from support.servers.parallel import sizes
from support.stages.picked_stage import picked_stage
from transformers import AutoTokenizer, Qwen3ForCausalLM

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stages.messages.to_gateway import (
    CommandResult,
    Marks,
    Ready,
    TextDelta,
    ToGateway,
    Tokenized,
)
from omnistage.stages.messages.to_stage import Command, Request
from omnistage.stages.worker.commands import Commands
from omnistage.stages.worker.stage import Opened

NUM_TOKENS = 16
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 16 << 20,
}
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
METHODS = {"worker_extension_cls": "support.stages.worker_methods.Methods"}


def hello(text: str = "Hello, who are you?") -> dict[str, Any]:
    """The body of a greedy request."""
    messages = [{"role": "user", "content": text}]
    return {
        "messages": messages,
        "max_completion_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


class TextHarness:
    """A stage, the far end of its channel, and transformers over the same folder."""

    def __init__(
        self, stage: Any, ready: Ready, near: Sender, outputs: Receiver[ToGateway], model: str
    ) -> None:
        self.stage = stage
        self._near = near
        self.ready = ready
        self._outputs = outputs
        self._came: defaultdict[str, list[Chunk[ToGateway]]] = defaultdict(list)
        self._folder = model
        self._tokenizer = AutoTokenizer.from_pretrained(model)

    @cached_property
    def model(self) -> Any:
        """transformers' over the same folder."""
        return Qwen3ForCausalLM.from_pretrained(self._folder).eval()

    async def chunks(self, name: str, body: Mapping[str, Any]) -> list[Any]:
        """Serve one request; OpenAI's chunks."""
        opened = Opened(name, Request(body_of(body), ["text"]))
        serving = asyncio.create_task(self.stage.serve(opened))
        try:
            async with asyncio.timeout(600):
                while not (serving.done() and self._has_all(name)):
                    self._look()
                    if serving.done():
                        serving.result()
                    await asyncio.sleep(0.005)
        finally:
            serving.cancel()
        told = [chunk.message for chunk in self._came.pop(name)]
        return [message.chunk for message in told if isinstance(message, TextDelta)]

    async def told(self, name: str, body: Mapping[str, Any]) -> list[Tokenized]:
        """What is told of tokens."""
        await self.stage.serve(Opened(name, Request(body_of(body), ["text"])))
        self._look()
        chunks = self._came.pop(name)
        assert [chunk.last for chunk in chunks if not isinstance(chunk.message, Marks)][-1]
        return [chunk.message for chunk in chunks if isinstance(chunk.message, Tokenized)]

    async def answer(self, name: str, body: Mapping[str, Any]) -> list[int]:
        """The token ids of one answer."""
        chunks = await self.chunks(name, body)
        return [one for chunk in chunks for choice in chunk["choices"] for one in ids_of(choice)]

    def expected(self, body: Mapping[str, Any], model: Any = None) -> list[int]:
        """What transformers answers, with the stage's own model or another."""
        ids = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        prompt = ids["input_ids"] if isinstance(ids, Mapping) else ids
        return likeliest(model or self.model, prompt, NUM_TOKENS)

    async def obey(self, command: str, **arguments: Any) -> Mapping[str, Any]:
        """What the stage answers to a command."""
        answer: Mapping[str, Any] = await self.stage.control(command, arguments)
        return answer

    async def rpc(self, method: str, *args: Any) -> Any:
        """What a method of the user's extension gives."""
        asked = {"method": method, "args": list(args), "reply": True, "from_all": False}
        return (await self.obey("rpc", **asked))["result"]

    async def obeyed_within(self, limit_s: float, method: str, *args: Any) -> CommandResult:
        """What the gateway would get for such a call, if commands may take so long."""
        commands = Commands(self.stage, "text", self._near, limit_s)
        asked = {"method": method, "args": list(args), "reply": True, "from_all": False}
        commands.begin("command", Command("rpc", asked))
        async with asyncio.timeout(600):
            while not self._has_all("command"):
                self._look()
                await asyncio.sleep(0.005)
        (chunk,) = self._came.pop("command")
        assert isinstance(chunk.message, CommandResult)
        return chunk.message

    async def add(self, name: str, path: Path, pinned: bool = False) -> Any:
        """The adapters that the stage has with one more."""
        answer = await self.obey(
            "add_lora", name=name, path=str(path), weight_name=None, pinned=pinned
        )
        return answer["loras"]

    def _has_all(self, name: str) -> bool:
        return bool(self._came[name]) and self._came[name][-1].last

    def _look(self) -> None:
        while (chunk := self._outputs.receive()) is not None:
            self._outputs.grant(chunk.request_id)
            self._came[chunk.request_id].append(chunk)


def ids_of(choice: Mapping[str, Any]) -> list[int]:
    return choice.get("token_ids") or []


@asynccontextmanager
async def running_text(
    folder: Path, run: Path, engine: Mapping[str, Any], options: Mapping[str, Any]
) -> AsyncIterator[TextHarness]:
    """The one stage of the graph that is picked for a folder, with more arguments and options."""
    arguments = {**ENGINE, **engine, **sizes()}
    async with picked_stage(folder, "text", run, arguments, options) as picked:
        assert picked.kind == "vllm.text"
        yield TextHarness(picked.stage, picked.ready, picked.near, picked.far, str(folder))
