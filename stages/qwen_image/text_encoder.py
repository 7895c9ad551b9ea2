"""The text encoder stage: prompts in, the hidden states that the pipeline takes as its own out."""

import inspect
from collections.abc import Sequence
from typing import Any, Self

from diffusers import DiffusionPipeline
from vllm.platforms import current_platform

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Payload
from omnistage.stage_configs.rules.own_arguments import ROWS_OF_ALL_POSITIONS, with_own
from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome
from omnistage.stages.messages.edge import Open, described
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.qwen_image.text_encoder_model import text_config
from omnistage.stages.vllm.answers.text_rows import prefill, send_rows
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts


class PromptTokens:
    """Template, tokenizer and limits of one pipeline.

    `num_dropped`: leading ids whose hidden states the pipeline drops. `max_length`: ids of the
    longest text; what follows is not read by the pipeline, and later ids change no earlier state.
    """

    def __init__(self, pipeline: Any) -> None:
        self._tokenizer = pipeline.tokenizer
        self._template: str = pipeline.prompt_template_encode
        self.num_dropped: int = pipeline.prompt_template_encode_start_idx
        read = inspect.signature(pipeline.__call__).parameters["max_sequence_length"].default
        self.max_length = self.num_dropped + min(read, pipeline.tokenizer_max_length)

    @classmethod
    def of_model(cls, model: str) -> Self:
        """Loads the tokenizer of a pipeline's folder or hub name, and nothing else."""
        config = DiffusionPipeline.load_config(model)
        parts = [name for name, value in config.items() if isinstance(value, list)]
        without = dict.fromkeys(name for name in parts if name != "tokenizer")
        return cls(DiffusionPipeline.from_pretrained(model, **without))

    def of(self, text: str) -> Sequence[int]:
        """The ids of one prompt."""
        ids: list[int] = self._tokenizer(self._template.format(text)).input_ids
        return ids[: self.max_length]


FOLDER = "text_encoder"
NO_WEIGHTS = "its weights are a part of a pipeline's folder, which its engine does not read again"
# Fields of a request, and the argument of the pipeline that the text's hidden states are.
TEXTS = {"prompt": "prompt_embeds", "negative_prompt": "negative_prompt_embeds"}


class TextEncoder(EngineStage):
    """One AsyncLLM that prefills prompts; their hidden states leave from the engine.

    Its prefix cache is off: a position that it had would not be computed, and its row never leave.
    """

    def __init__(self, ports: StagePorts) -> None:
        if not ports.downstream:
            raise ValueError(f"stage {ports.name} has no edge: nobody takes its hidden states")
        self._ports = ports

    async def start(self) -> Ready:
        """Load, and encode one prompt."""
        ports = self._ports
        self._tokens = PromptTokens.of_model(ports.model)
        needed = self._tokens.max_length + 1  # the sampled token is one more
        length = ports.engine.get("max_model_len") or needed
        if length < needed:
            raise ValueError(
                f"max_model_len is {length}; the pipeline's longest text needs {needed}"
            )
        bridge = BridgeConfig(
            HIDDEN_STATES,
            sinks=sinks_of(ports.downstream, Payload.ARGUMENTS),
            ledger=ports.ledger,
        )
        options = {
            "skip_tokenizer_init": True,
            "dtype": "bfloat16" if current_platform.is_cuda_alike() else "float32",
            **with_own(ports.engine, ROWS_OF_ALL_POSITIONS),
            "max_model_len": length,
        }
        self._engine = make_engine(
            AsyncLLM,
            Checkpoint(ports.model).part(FOLDER),
            options,
            bridge,
            text_config,
            stage=ports.name,
        )
        warm_up = {"prompt_token_ids": self._tokens.of("A warm-up.")}
        await prefill(self._engine, "warm-up", warm_up)
        self._control = EngineControl(self._engine, NO_WEIGHTS, stage=ports.name)
        return Ready(max_model_len=length, commands=self._control.commands)

    async def serve(self, opened: Opened) -> None:
        """Announce the request downstream, then encode all its texts."""
        request_id, body = opened.id, opened.request.fields
        if opened.request.given_media:  # they would have to go on to the denoiser
            message = "This graph makes pictures from words only."
            raise RequestError(400, message, param="image", code="unsupported_model")
        asked = {field: as_list(body[field]) for field in TEXTS if body.get(field) is not None}
        if isinstance(body.get("negative_prompt"), str):  # one for all prompts
            asked["negative_prompt"] = [body["negative_prompt"]] * len(asked["prompt"])
        texts = {
            TEXTS[field]: [self._tokens.of(text) for text in given]
            for field, given in asked.items()
        }
        first = self._tokens.num_dropped
        to_come = {
            name: RowsToCome(first, [len(ids) - first for ids in rows], mask=f"{name}_mask")
            for name, rows in texts.items()
        }
        about = ArgumentsToCome(rows=to_come, replaces=list(TEXTS))
        announced = Open(opened.request, described(about))
        edges = self._ports.live(opened.request)
        for edge in edges:
            edge.announce(request_id, announced)
        headers = trace_headers(opened.request, self._ports.name)
        prompts = {
            name: [{"prompt_token_ids": ids} for ids in rows] for name, rows in texts.items()
        }
        to = [edge.target for edge in edges]
        await send_rows(self._engine, request_id, prompts, to, first, headers)


def as_list(texts: str | Sequence[str]) -> Sequence[str]:
    """One prompt or several, as a list."""
    return [texts] if isinstance(texts, str) else texts
