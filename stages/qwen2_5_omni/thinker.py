"""The thinker stage: text out, and to the talker a row for every position of prompt and answer."""

from collections.abc import Sequence

from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniThinkerTextModel

from omnistage.stages.messages.body import GivenText
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.given_text import Qwen2_5OmniGivenText
from omnistage.stages.qwen2_5_omni.speech import SpokenRows
from omnistage.stages.qwen2_5_omni.thinker_model import thinker_config
from omnistage.stages.speech.thinker_stage import ThinkerEngine, ThinkerStage
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.compat import RequestOutputKind, SamplingParams
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.request_options import ExportedRows
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Downstream, StagePorts

THINKER = ModelPart("thinker.", Qwen2_5OmniThinkerTextModel)
# Characters of a given text that one request has: its speech has at most 4096 codes, 82 s.
MAX_TEXT = 300


class Thinker(ThinkerStage[SpokenRows]):
    """Answers; a given text is read by the engine, because the talker needs its rows."""

    spoken_class = SpokenRows
    speech = Speech(max_text=MAX_TEXT)

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports)
        self._given = Qwen2_5OmniGivenText(ports.model) if self._has_talker else None

    @property
    def parts(self) -> ThinkerEngine:
        """The rows are of the thinker's text model."""
        thinker = self._config.thinker_config
        media_ids = (
            thinker.audio_token_index,
            thinker.image_token_index,
            thinker.video_token_index,
        )
        return ThinkerEngine(thinker_config, THINKER, media_ids)

    def exported(self, prompt_ids: Sequence[int], edges: Sequence[Downstream]) -> ExportedRows:
        """The rows of every position."""
        return ExportedRows()

    async def read_out(self, request_id: str, request: Request, body: GivenText) -> int:
        """Let the engine read the text behind its prompt; the token that it samples is dropped."""
        assert self._given is not None
        prompt_ids = self._given.prompt(body.instructions)
        text_ids = self._given.tokens(body.text)
        self._check_length(len(prompt_ids) + len(text_ids))
        for spoken in self._spoken(request_id, request):
            spoken.open_given(prompt_ids, len(text_ids))
        await self._read(request_id, request, [*prompt_ids, *text_ids])
        return len(prompt_ids) + len(text_ids)

    async def _read(self, request_id: str, request: Request, token_ids: list[int]) -> None:
        bridge = self._bridge(request_id, request, token_ids)
        params = SamplingParams(
            max_tokens=1,
            extra_args=None if bridge is None else bridge.extra_args(),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=not self._engine.has_row_cache,
        )
        prompt = {"prompt_token_ids": token_ids}
        headers = trace_headers(request, self._ports.name)
        async for _ in self._engine.generate(prompt, params, request_id, trace_headers=headers):
            pass

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens >= self._max_model_len:
            raise RequestError(
                400,
                f"the text has {num_tokens} tokens with its instructions; the thinker takes "
                f"{self._max_model_len - 1}",
                param="input",
                code="context_length_exceeded",
            )
