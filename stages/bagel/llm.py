"""The stage of BAGEL's language model: it answers chats with words, and has images drawn."""

from collections.abc import Mapping

import numpy as np
from transformers import Qwen2Tokenizer

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.bagel.chats import CHAT_TEMPLATE, check_messages, ending_chunks
from omnistage.stages.bagel.llm_model import DRAWING, LANGUAGE_MODEL, LlmConfig
from omnistage.stages.bagel.settings import TEXT_CONFIG
from omnistage.stages.bagel.texts import END, text_ids
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.body import Chat, Draw, GivenMedium
from omnistage.stages.messages.edge import Open, described
from omnistage.stages.messages.to_gateway import TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.vllm.answers.conversations import image_urls, last_text
from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.media.media import ReceivedMedia
from omnistage.stages.vllm.text import TextStage
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts


class Llm(TextStage):
    """One AsyncLLM that answers texts; what is drawn goes on to the pipeline's stage."""

    def __init__(self, ports: StagePorts) -> None:
        ports.options = {"chat_template": CHAT_TEMPLATE, **ports.options}
        super().__init__(ports)
        self._tokenizer = Qwen2Tokenizer.from_pretrained(ports.model)

    def _make_engine(self) -> RenderedLLM:
        ports = self._ports
        text = Checkpoint(ports.model).json(TEXT_CONFIG)
        return make_engine(
            RenderedLLM,
            ports.model,
            ports.engine,
            None,
            LlmConfig(text, self._tokenizer.convert_tokens_to_ids(END)),
            stage=ports.name,
            part=ModelPart(f"{LANGUAGE_MODEL}model.", without=DRAWING),
        )

    async def serve(self, opened: Opened) -> None:
        """Answer with words, or have the pipeline's stage draw."""
        request_id, request = opened.id, opened.request
        if isinstance(request.body, Draw):
            self._open(request_id, request, opened.tensors)
            return
        if isinstance(request.body, Chat):
            draws = bool(self._ports.live(request, Payload.ARGUMENTS))
            check_messages(self._tokenizer, request.fields["messages"], has_images=draws)
            if draws:
                await self._draw(request_id, request)
                return
        await super().serve(opened)

    async def _draw(self, request_id: str, request: Request) -> None:
        """Have a chat answered by an image; there are no words beside it."""
        assert request.image is not None
        messages = request.fields["messages"]
        prompt = last_text(messages)
        if not prompt:
            message = "messages: the last of the user must have a text that says what is wanted"
            raise RequestError(400, message, param="messages", code="invalid_value")
        reader = ReceivedMedia()
        images = [await reader.fetch_image_async(url) for url in image_urls(messages)]
        tensors = {
            f"image-{number}": Tensor.from_numpy(np.asarray(one))
            for number, one in enumerate(images)
        }
        media = [GivenMedium("image", name) for name in tensors]
        drawing = Draw({**request.image.fields, "prompt": prompt}, media)
        self._open(request_id, request.with_body(drawing), tensors)
        num_tokens = len(text_ids(self._tokenizer, prompt))
        for chunk in ending_chunks(num_tokens, 0):
            self._ports.send_output(request_id, TextDelta(chunk), last=not chunk["choices"])

    def _open(self, request_id: str, request: Request, tensors: Mapping[str, Tensor]) -> None:
        """Announce an image, of which the pipeline reads the prompt itself."""
        message = Open(request, described(ArgumentsToCome()))
        for edge in self._ports.live(request, Payload.ARGUMENTS):
            edge.open.send(Chunk(request_id, message, 0, dict(tensors), last=True))
