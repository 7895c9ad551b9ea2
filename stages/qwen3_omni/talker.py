"""The talker stage: thinker tokens in, codec frames out; the frames leave from the engine."""

from collections.abc import Sequence

from transformers import AutoConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerModel

from omnistage.stages.messages.edge import Open
from omnistage.stages.qwen3_omni.step_schema import TALKER_LAYOUT, talker_schema
from omnistage.stages.qwen3_omni.talker_model import talker_config
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, TalkerPrompt, talker_prompt
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.speech.talker_parts import SamplingDefaults, SpokenPrompt, TalkerEngine
from omnistage.stages.speech.talker_stage import TalkerStage, noise_seed
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.request_options import (
    CodeSampling,
    RequestOptions,
    late_input_options,
)
from omnistage.stages.worker.stage import Opened, StagePorts

# The code predictor samples with its own when it samples.
PREDICTOR_TOP_K, PREDICTOR_TOP_P = 50, 0.8
TALKER = ModelPart("talker.", Qwen3OmniMoeTalkerModel)


def request_options(
    request_id: str,
    ids: SpeechIds,
    prompt: TalkerPrompt,
    tokens: Sequence[int] = (),
    complete: bool = False,
) -> RequestOptions:
    """Returns what the talker's engine is told of a request; `tokens`: the first that are
    spoken.
    """
    return late_input_options(
        request_id,
        TALKER_LAYOUT.pack(len(prompt), prompt.inputs),
        hidden_positions=prompt.hidden_positions,
        hidden_sources=prompt.hidden_sources,
        first_token_position=len(prompt) - 1,
        position_delta=prompt.position_delta,
        ends={"tokens": (ids.tts_eos, ids.tts_pad)},
        fed={"tokens": tokens},
        complete=complete,
    )


class Talker(TalkerStage):
    """Speaks the thinker's tokens; its requests wait for them in its engine's scheduler."""

    defaults = SamplingDefaults(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05)

    def __init__(self, ports: StagePorts) -> None:
        self._config = AutoConfig.from_pretrained(ports.model)
        self._ids = SpeechIds.of(self._config)
        super().__init__(ports, list(self._ids.speakers))

    @property
    def parts(self) -> TalkerEngine:
        """A frame is computed when its first code is fed, so the last token is never heard."""
        schema = talker_schema(self._config.talker_config)
        return TalkerEngine(schema, talker_config, TALKER, (self._ids.codec_eos,), num_unheard=1)

    @property
    def default_speaker(self) -> str:
        """The model card's."""
        return "ethan" if "ethan" in self._ids.speakers else min(self._ids.speakers)

    def warm_up_prompt(self, request_id: str, length: int) -> SpokenPrompt:
        """A user's turn of so many tokens, and one token that is spoken."""
        ids, speaker = self._ids, min(self._ids.speakers)
        header = [ids.im_start, ids.assistant, 0]
        shortest = talker_prompt(ids, [ids.im_start, ids.user, *header], [], speaker)
        user = [ids.im_start, ids.user, *[0] * max(0, length - len(shortest))]
        prompt = talker_prompt(ids, [*user, *header], [], speaker)
        options = request_options(request_id, ids, prompt, tokens=(0,), complete=True)
        return self._spoken(prompt, options)

    async def prompt_of(self, opened: Opened, speaker: str) -> SpokenPrompt:
        """From the thinker's."""
        assert isinstance(opened.message, Open)
        grids = opened.message.read(ThinkerPrompt).grids
        prompt_ids = opened.tensors["prompt"].numpy().tolist()
        prompt = talker_prompt(self._ids, prompt_ids, grids, speaker)
        return self._spoken(
            prompt, request_options(opened.id, self._ids, prompt, tokens=prompt.lead)
        )

    def _spoken(self, prompt: TalkerPrompt, options: RequestOptions) -> SpokenPrompt:
        ids = [self._ids.codec_pad] * len(prompt)
        return SpokenPrompt(ids, options, len(prompt) + len(prompt.lead))

    def frame_sampling(self, params: SamplingParams) -> CodeSampling:
        """The code predictor's own, but for whether it samples at all."""
        return CodeSampling(
            temperature=1.0 if params.temperature else 0.0,  # not the talker's
            top_k=PREDICTOR_TOP_K,
            top_p=PREDICTOR_TOP_P,
            seed=noise_seed(params),
        )
