"""The talker stage, an entry of its graph: a given text in, patches of latents out."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.body import VoiceSample
from omnistage.stages.messages.edge import Lead
from omnistage.stages.messages.to_gateway import Speech
from omnistage.stages.speech.entry import given_text, longest_text
from omnistage.stages.speech.talker_options import VoiceOptions
from omnistage.stages.speech.talker_parts import SamplingDefaults, SpokenPrompt, TalkerEngine
from omnistage.stages.speech.talker_stage import TalkerStage, noise_seed
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.request_options import CodeSampling, late_input_options
from omnistage.stages.vllm.step.step_schema import ColumnLayout
from omnistage.stages.voxcpm2.given_text import VoxCpm2GivenText, described
from omnistage.stages.voxcpm2.model_config import CONFIG_FORMAT, talker_config
from omnistage.stages.voxcpm2.settings import load_settings
from omnistage.stages.voxcpm2.step_schema import (
    AUDIO,
    CONTINUES,
    END,
    GO_ON,
    MAX_REFERENCE,
    SCHEMA,
)
from omnistage.stages.voxcpm2.talker_prompt import TalkerPrompt, talker_prompt
from omnistage.stages.voxcpm2.voice_encoder import CONTINUED, REFERENCE, LatentEncoder, Latents
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened, StagePorts

MIN_PATCHES = 4  # the reference heeds no earlier end
PATCHES_A_TOKEN, MORE_PATCHES = 6, 10  # the reference's limit of a speech, by its text
NUM_LEAD = 3  # patches of a sound that is gone on from, with which its decoder begins


class Talker(TalkerStage):
    """Speaks given texts: with a voice that a text describes, or of a sound."""

    _options: VoiceOptions

    options_class = VoiceOptions
    # Whether a speech goes on is the likelier of two ids.
    defaults = SamplingDefaults(
        temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, min_tokens=MIN_PATCHES
    )

    def __init__(self, ports: StagePorts) -> None:
        load_settings(ports.model)
        super().__init__(ports, [])
        self._layout = ColumnLayout(SCHEMA.columns)
        self._text = VoxCpm2GivenText(ports.model)
        self._making = ThreadPoolExecutor(1, "omnistage-voices")  # one voice at a time
        has_weights = ports.engine.get("load_format") != "dummy"
        self._voices = LatentEncoder(ports.model, self._options.voices, has_weights=has_weights)

    @property
    def parts(self) -> TalkerEngine:
        """A patch is computed when its id is fed, so the last id is never heard."""
        return TalkerEngine(
            SCHEMA,
            talker_config,
            ModelPart("base_lm."),
            (END,),
            num_unheard=1,
            arguments={"config_format": CONFIG_FORMAT},
        )

    @property
    def speech(self) -> Speech:
        """Returns what it can be told beside a text."""
        return Speech(takes_sound=True, max_text=longest_text(self._max_model_len))

    def warm_up_prompt(self, request_id: str, length: int) -> SpokenPrompt:
        """A text of so many tokens."""
        return self._spoken(request_id, talker_prompt([0] * max(1, length), 0, False))

    async def prompt_of(self, opened: Opened, speaker: str) -> SpokenPrompt:
        """Returns the prompt of a given text."""
        body = given_text(opened)
        if not body.text.strip():
            raise RequestError(400, "has nothing that can be spoken", param="input")
        spoken = described(body.text, body.instructions)
        words = "" if body.reference is None else body.reference.text or ""
        latents = await self._latents(opened, body.reference, CONTINUED if words else REFERENCE)
        text = self._text.tokens(words + spoken)
        self._ports.send_input_tokens(opened.id, len(text))
        num_patches = 0 if latents is None else len(latents)
        prompt = talker_prompt(text, num_patches, bool(words))
        limit = PATCHES_A_TOKEN * len(self._text.tokens(spoken)) + MORE_PATCHES
        return self._spoken(opened.id, prompt, latents, bool(words), limit)

    async def _latents(
        self, opened: Opened, reference: VoiceSample | None, way: str
    ) -> Latents | None:
        if reference is None:
            return None
        key, sound = reference.key, opened.tensors["reference"].numpy()
        latents = await asyncio.to_thread(self._voices.known, key, way)
        if latents is None:
            make = partial(self._voices.latents, sound, key, way)
            latents = await asyncio.get_running_loop().run_in_executor(self._making, make)
        if len(latents) > MAX_REFERENCE:
            message = f"the reference sound has {len(latents)} patches; at most {MAX_REFERENCE}"
            raise RequestError(400, message, param="voice", code="invalid_value")
        return latents

    def _spoken(
        self,
        request_id: str,
        prompt: TalkerPrompt,
        latents: Latents | None = None,
        continues: bool = False,
        limit: int | None = None,
    ) -> SpokenPrompt:
        inputs = self._layout.pack(len(prompt), prompt.inputs)
        options = late_input_options(request_id, inputs, ends={}, complete=True)
        about, tensors = None, {}
        if latents is not None:
            told = {AUDIO: latents.tobytes(), **({CONTINUES: b""} if continues else {})}
            options = msgspec.structs.replace(options, model=told)
            if continues:
                lead = latents[-NUM_LEAD:]
                about, tensors = Lead(len(lead)), {"lead": Tensor.from_numpy(lead)}
        ids = [GO_ON] * len(prompt)
        return SpokenPrompt(ids, options, len(prompt), about, tensors, max_frames=limit)

    def frame_sampling(self, params: SamplingParams) -> CodeSampling:
        """The noise of a request's patches is by its seed."""
        return CodeSampling(seed=noise_seed(params))
