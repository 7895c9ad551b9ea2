"""The stage of BAGEL's language model: it answers with words, and reads what is drawn of."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
from transformers import Qwen2Tokenizer

from omnistage.connectors.chunk import Tensor
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.bagel.chats import (
    CHAT_TEMPLATE,
    check_messages,
    ending_chunks,
    texts_of,
    thought_chunk,
)
from omnistage.stages.bagel.llm_model import DRAWING, LANGUAGE_MODEL, LlmConfig
from omnistage.stages.bagel.settings import TEXT_CONFIG
from omnistage.stages.bagel.texts import END, START, check_text, said_text
from omnistage.stages.bagel.thoughts import ReadPrompt, Thinking
from omnistage.stages.messages.arguments import ArgumentsToCome, KvToCome, Value
from omnistage.stages.messages.body import Chat, Draw, GivenMedium
from omnistage.stages.messages.edge import Open, described
from omnistage.stages.messages.to_gateway import TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers.conversations import image_urls, last_text
from omnistage.stages.vllm.answers.followers import wait_for_room
from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.answers.text_kv import send_kv
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.media.media import ReceivedMedia
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.text import TextStage
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts

CONTEXTS = "contexts"  # of the pipeline
NO_PROMPT = "messages: the last of the user must have a text that says what is wanted"


class Llm(TextStage):
    """Answers texts by one AsyncLLM, and thinks before an image.

    Keys and values of what it has read go to the pipeline's stage. Edits are read there: their
    images have tokens that see each other.
    """

    def __init__(self, ports: StagePorts) -> None:
        ports.options = {"chat_template": CHAT_TEMPLATE, **ports.options}
        super().__init__(ports)
        self._tokenizer = Qwen2Tokenizer.from_pretrained(ports.model)
        self._start, self._end = self._tokenizer.convert_tokens_to_ids([START, END])

    def _make_engine(self) -> RenderedLLM:
        ports = self._ports
        sinks = sinks_of(ports.downstream, Payload.KV)
        bridge = BridgeConfig(sinks=sinks, sends_kv=True, ledger=ports.ledger) if sinks else None
        return make_engine(
            RenderedLLM,
            ports.model,
            ports.engine,
            bridge,
            LlmConfig(Checkpoint(ports.model).json(TEXT_CONFIG), self._end),
            stage=ports.name,
            part=ModelPart(f"{LANGUAGE_MODEL}model.", without=DRAWING),
        )

    async def serve(self, opened: Opened) -> None:
        """Answer with words, or have the pipeline's stage draw."""
        request_id, request = opened.id, opened.request
        if isinstance(request.body, Draw):
            await self._draw_prompts(opened)
            return
        if isinstance(request.body, Chat):
            draws = bool(self._ports.live(request, Payload.ARGUMENTS))
            check_messages(self._tokenizer, request.fields["messages"], has_images=draws)
            if draws:
                await self._draw_chat(request_id, request)
                return
        await super().serve(opened)

    async def _draw_prompts(self, opened: Opened) -> None:
        """Read the prompts of a request for images; those of edits are read downstream."""
        request_id, request = opened.id, opened.request
        if request.given_media or not self._ports.live(request, Payload.KV):
            self._open(request_id, request, ArgumentsToCome(), opened.tensors)
            return
        prompt = request.fields["prompt"]
        prompts = [prompt] if isinstance(prompt, str) else prompt
        for one in prompts:
            check_text(self._tokenizer, one)
        thinking = Thinking.of(request.fields.get("extra") or {})
        read = [ReadPrompt.of(self._tokenizer, [one], thinking.thinks) for one in prompts]
        thoughts = [""] * len(read)
        for one in read:
            one.check(self._max_model_len, thinking.num_with_marks)
        if thinking.thinks:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._think(request_id, request, one, thinking, number))
                    for number, one in enumerate(read)
                ]
            thoughts = [task.result() for task in tasks]
            read = [
                one.followed(self._tokenizer, thought)
                for one, thought in zip(read, thoughts, strict=True)
            ]
        await self._give(request_id, request, read, {"thoughts": thoughts})

    async def _draw_chat(self, request_id: str, request: Request) -> None:
        """Have a chat answered by an image, after the thought before it."""
        assert request.image is not None
        messages = request.fields["messages"]
        prompt = last_text(messages)
        if not prompt:
            raise RequestError(400, NO_PROMPT, param="messages", code="invalid_value")
        urls = image_urls(messages)
        drawing = Draw({**request.image.fields, "prompt": prompt})
        if urls or not self._ports.live(request, Payload.KV):
            reader = ReceivedMedia()
            images = [np.asarray(await reader.fetch_image_async(url)) for url in urls]
            tensors = {f"image-{n}": Tensor.from_numpy(one) for n, one in enumerate(images)}
            media = [GivenMedium("image", name) for name in tensors]
            about, request = ArgumentsToCome(), request.with_body(Draw(drawing.fields, media))
            self._open(request_id, request, about, tensors)
            self._end_words(request_id, 0, 0)
            return
        thinking = Thinking.of(drawing.fields.get("extra") or {})
        read = ReadPrompt.of(self._tokenizer, texts_of(messages), thinking.thinks, "messages")
        read.check(self._max_model_len, thinking.num_with_marks)
        num_read, num_written = len(read.ids), 0
        if thinking.thinks:
            thought = await self._think(request_id, request, read, thinking, is_streamed=True)
            read = read.followed(self._tokenizer, thought)
            num_written = len(read.ids) - num_read
        read.check(self._max_model_len)
        self._end_words(request_id, num_read, num_written)
        await self._give(request_id, request.with_body(drawing), [read])

    def _end_words(self, request_id: str, num_read: int, num_written: int) -> None:
        for chunk in ending_chunks(num_read, num_written):
            self._ports.send_output(request_id, TextDelta(chunk), last=not chunk["choices"])

    async def _think(
        self,
        request_id: str,
        request: Request,
        read: ReadPrompt,
        thinking: Thinking,
        number: int = 0,
        is_streamed: bool = False,
    ) -> str:
        """Write the thought of prompt `number`, and stream it if that is wanted."""
        if not thinking.num_tokens:
            return ""
        generated = self._engine.generate(
            {"prompt_token_ids": [*read.ids, self._start]},
            thinking.sampling(request.seed, number, (self._start, self._end)),
            f"{request_id}-thought-{number}",
            trace_headers=trace_headers(request, self._ports.name),
        )
        ids: list[int] = []
        sent = ""
        async for output in generated:
            (made,) = output.outputs
            ids += made.token_ids
            if is_streamed and made.text:
                sent += made.text
                self._send_thought(request_id, made.text)
                await wait_for_room(self._ports, request_id, [])
        thought = said_text(self._tokenizer, ids)
        if is_streamed and thought != sent:  # half a character at the end
            self._send_thought(request_id, thought.removeprefix(sent))
        return thought

    def _send_thought(self, request_id: str, text: str) -> None:
        self._ports.mark(request_id, "first_token")
        self._ports.send_output(request_id, TextDelta(thought_chunk(text)))

    async def _give(
        self,
        request_id: str,
        request: Request,
        read: Sequence[ReadPrompt],
        values: Mapping[str, Value] | None = None,
    ) -> None:
        """Announce an image, and send keys and values of what was read before it."""
        for one in read:
            one.check(self._max_model_len)
        about = ArgumentsToCome(
            kv={CONTEXTS: KvToCome([len(one.ids) for one in read])},
            values={"prefix_tokens": read[0].num_prefix, **(values or {})},
        )
        self._open(request_id, request, about, {})
        to = [edge.target for edge in self._ports.live(request, Payload.KV)]
        prompts = {CONTEXTS: [{"prompt_token_ids": one.ids} for one in read]}
        headers = trace_headers(request, self._ports.name)
        read_at_s = await send_kv(self._engine, request_id, prompts, to, headers)
        self._ports.mark(request_id, "read", round(read_at_s * 1e9) or None)

    def _open(
        self,
        request_id: str,
        request: Request,
        about: ArgumentsToCome,
        tensors: Mapping[str, Tensor],
    ) -> None:
        message = Open(request, described(about))
        for edge in self._ports.live(request, Payload.ARGUMENTS):
            edge.announce(request_id, message, tensors)
