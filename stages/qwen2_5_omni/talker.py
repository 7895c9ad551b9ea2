"""The talker stage: the thinker's rows in, codes out; the codes leave from the engine."""

from functools import partial

from transformers import AutoConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniTalkerModel

from omnistage.stages.messages.edge import Open
from omnistage.stages.qwen2_5_omni.step_schema import talker_schema
from omnistage.stages.qwen2_5_omni.talker_model import talker_config
from omnistage.stages.qwen2_5_omni.talker_prompt import (
    SpeechIds,
    request_options,
    silent_options,
    speaker_tokens,
    talker_prompt,
)
from omnistage.stages.speech.spoken_answer import ThinkerPrompt
from omnistage.stages.speech.talker_parts import SamplingDefaults, SpokenPrompt, TalkerEngine
from omnistage.stages.speech.talker_stage import TalkerStage
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.worker.stage import Opened, StagePorts

TALKER = ModelPart("talker.", Qwen2_5OmniTalkerModel)


class Talker(TalkerStage):
    """Speaks the thinker's rows; its requests wait for each of them in its engine's scheduler."""

    defaults = SamplingDefaults(
        temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, max_tokens=4096
    )

    def __init__(self, ports: StagePorts) -> None:
        self._config = AutoConfig.from_pretrained(ports.model)
        self._ids = SpeechIds.of(self._config, speaker_tokens(ports.model))
        super().__init__(ports, list(self._ids.speakers))

    @property
    def parts(self) -> TalkerEngine:
        """A code leaves when it is fed, so the last token is never heard."""
        return TalkerEngine(
            talker_schema(self._config.talker_config),
            partial(talker_config, text_ids=self._ids.text),
            TALKER,
            self._ids.ends,
            num_unheard=1,
        )

    def warm_up_prompt(self, request_id: str, length: int) -> SpokenPrompt:
        """Places of so many tokens without rows."""
        prompt = talker_prompt(self._ids, max(1, length - 2), [], self.default_speaker)
        return SpokenPrompt(prompt.token_ids, silent_options(request_id, prompt), len(prompt))

    async def prompt_of(self, opened: Opened, speaker: str) -> SpokenPrompt:
        """From the thinker's."""
        assert isinstance(opened.message, Open)
        grids = opened.message.read(ThinkerPrompt).grids
        (num_prompt,) = opened.tensors["prompt"].shape
        prompt = talker_prompt(self._ids, num_prompt, grids, speaker)
        return SpokenPrompt(prompt.token_ids, request_options(opened.id, prompt), len(prompt))
