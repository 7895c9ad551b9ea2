"""The stage of OmniGen2's language model: it answers, and encodes what the pipeline draws of."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from tempfile import TemporaryDirectory

from omnistage.connectors.chunk import Tensor
from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.lumina2.positions import MAX_REFERENCES
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.body import Chat, Detokenize, Draw, GivenMedium, Tokenize
from omnistage.stages.messages.edge import Open, described
from omnistage.stages.messages.to_gateway import Ready, TextDelta
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.omnigen2.chat_template import CHAT_TEMPLATE
from omnistage.stages.omnigen2.encoded import (
    NEGATIVE,
    PROMPT,
    Texts,
    TextToEncode,
    announced,
)
from omnistage.stages.omnigen2.prompt import PICTURE, token_ids
from omnistage.stages.vllm.answers.chat import ChatServing
from omnistage.stages.vllm.answers.conversations import image_urls, last_text
from omnistage.stages.vllm.answers.followers import wait_for_room
from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.answers.text_rows import send_rows
from omnistage.stages.vllm.answers.tokenization import Tokenization
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.engine.warm_up import warm_up_text
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.grammars.grammars import Grammars
from omnistage.stages.vllm.media.media import reading_images, reading_of, received
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts

PARTS = ("processor", "mllm")  # folders of the pipeline that are the language model together
FORBIDDEN = -100.0  # of a token that is not to come


class Mllm(EngineStage):
    """One AsyncLLM and vLLM's chat serving over it; hidden states leave from the engine.

    The answer to a chat whose first token is the one of a picture is a picture, of the conversation
    up to there and of its images.
    """

    _engine: RenderedLLM

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._folder = ExitStack()

    async def start(self) -> Ready:
        """Load, and answer one request."""
        ports = self._ports
        sinks = sinks_of(ports.downstream, Payload.ARGUMENTS)
        bridge = BridgeConfig(HIDDEN_STATES, sinks=sinks, ledger=ports.ledger) if sinks else None
        folder = self._folder.enter_context(TemporaryDirectory(prefix="omnigen2-"))
        link_parts(ports.model, Path(folder))
        self._engine = make_engine(RenderedLLM, folder, ports.engine, bridge, stage=ports.name)
        self._engine.rendered = {}
        self._engine.grammars = Grammars()
        options = {"chat_template": CHAT_TEMPLATE, **ports.options}
        self._chat = ChatServing(self._engine, ports.model, options)
        self._tokenization = Tokenization(self._engine, ports)
        self._tokenizer = self._engine.renderer.tokenizer
        self._picture = self._tokenizer.convert_tokens_to_ids(PICTURE)
        config = self._engine.model_config
        self._image_id = config.hf_config.image_token_id
        self._max_model_len: int = config.max_model_len
        await warm_up_text(self._engine, self._chat)
        await self._take_control(ports, self._chat)
        return Ready(
            max_model_len=self._max_model_len,
            commands=self._control.commands,
            loras=self._loras,
            reading=reading_of(self._engine),
        )

    async def serve(self, opened: Opened) -> None:
        """Answer a chat, or encode the texts of images."""
        with received(opened.media):
            body = opened.request.body
            if isinstance(body, Draw):
                await self._encode_texts(opened)
            elif isinstance(body, Tokenize | Detokenize):
                await self._tokenization.serve(opened.id, body)
            else:
                await self._answer(opened.id, opened.request)

    async def _encode_texts(self, opened: Opened) -> None:
        """Encode the prompts of an image request; its images go on as they are."""
        fields = opened.request.fields
        prompts = fields["prompt"]
        prompts = [prompts] if isinstance(prompts, str) else prompts
        negative = [fields.get("negative_prompt") or ""] * len(prompts)
        texts = {
            name: [TextToEncode.of_ids(token_ids(self._tokenizer, one)) for one in given]
            for name, given in ((PROMPT, prompts), (NEGATIVE, negative))
        }
        await self._give(opened.id, opened.request, texts, opened.tensors)

    async def _answer(self, request_id: str, request: Request) -> None:
        """Stream one answer; once it is complete, draw it or say that it is words."""
        edges = self._ports.live(request, Payload.ARGUMENTS)
        urls = image_urls(request.fields["messages"]) if edges else []
        if len(urls) > MAX_REFERENCES:
            message = f"have {len(urls)} images; with an image as the answer at most"
            raise RequestError(400, f"{message} {MAX_REFERENCES}", param="messages")
        prompts: list[JsonMap] = []
        if edges:
            self._engine.rendered[request_id] = prompts.append
        try:
            with reading_images() as images:
                first = await self._stream(request_id, request, self._bound(request.fields, edges))
        finally:
            self._engine.rendered.pop(request_id, None)
        if not edges:
            return
        if first != self._picture:
            self._open(request_id, request.with_body(None), ArgumentsToCome(is_nothing=True), {})
            return
        assert isinstance(request.body, Chat)
        assert request.image is not None
        tensors = {
            f"image-{number}": Tensor.from_numpy(images[url]) for number, url in enumerate(urls)
        }
        media = [GivenMedium("image", name) for name in tensors]
        wish = {**request.image.fields, "prompt": last_text(request.fields["messages"])}
        none = await self._ids_of_nothing()
        texts = {
            PROMPT: [TextToEncode.of_chat(prompts[-1], self._image_id)],
            NEGATIVE: [TextToEncode.of_ids(none)],
        }
        await self._give(request_id, request.with_body(Draw(wish, media)), texts, tensors)

    def _bound(self, fields: Json, edges: Sequence[Downstream]) -> Json:
        """A chat's fields: a picture ends the words, and where none is wanted only words come."""
        if edges:
            return {**fields, "stop_token_ids": [*fields.get("stop_token_ids", ()), self._picture]}
        bias = {**(fields.get("logit_bias") or {}), str(self._picture): FORBIDDEN}
        return {**fields, "logit_bias": bias}

    async def _stream(self, request_id: str, request: Request, fields: Json) -> int | None:
        """Send an answer as it comes; its first token is returned."""
        headers = trace_headers(request, self._ports.name)
        first: int | None = None
        async with (
            self._adapters.using(fields.get("model")),
            aclosing(self._chat.stream(request_id, fields, headers)) as chunks,
        ):
            async for chunk in chunks:
                self._ports.mark(request_id, "first_token")
                is_last = not chunk["choices"]
                if first is None:
                    ids = (choice.get("token_ids") for choice in chunk["choices"])
                    first = next((some[0] for some in ids if some), None)
                self._ports.send_output(request_id, TextDelta(chunk), last=is_last)
                if not is_last:
                    await wait_for_room(self._ports, request_id, [])
        return first

    async def _ids_of_nothing(self) -> Sequence[int]:
        """The ids of a conversation that says nothing, against which a picture is guided."""
        ids: Sequence[int] = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": ""}],
            chat_template=CHAT_TEMPLATE,
            add_generation_prompt=True,
            return_dict=False,
        )
        return ids

    async def _give(
        self, request_id: str, request: Request, texts: Texts, tensors: Mapping[str, Tensor]
    ) -> None:
        """Announce a picture to the pipeline's stage, then encode its texts."""
        longest = max(one.num_tokens for given in texts.values() for one in given)
        if longest >= self._max_model_len:
            message = f"has {longest} tokens; at most {self._max_model_len - 1}"
            raise RequestError(400, message, param="prompt", code="context_length_exceeded")
        edges = self._open(request_id, request, announced(texts), tensors)
        prompts = {name: [one.prompt for one in given] for name, given in texts.items()}
        to = [edge.target for edge in edges]
        headers = trace_headers(request, self._ports.name)
        await send_rows(self._engine, request_id, prompts, to, 0, headers)

    def _open(
        self,
        request_id: str,
        request: Request,
        about: ArgumentsToCome,
        tensors: Mapping[str, Tensor],
    ) -> Sequence[Downstream]:
        edges = self._ports.live(request, Payload.ARGUMENTS)
        message = Open(request, described(about))
        for edge in edges:
            edge.announce(request_id, message, tensors)
        return edges

    async def close(self) -> None:
        """Stop the engine."""
        await super().close()
        self._folder.close()


def link_parts(model: str, folder: Path) -> None:
    """Put the language model's files and its processor's into one folder, where vLLM finds both."""
    for part in PARTS:
        for file in Path(Checkpoint(model).part(part)).iterdir():
            link = folder / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file.resolve())
