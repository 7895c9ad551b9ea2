"""The talker stage, an entry of its graph: a given text in, codec frames out from the engine."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.body import GivenText, VoiceSample
from omnistage.stages.messages.edge import Lead
from omnistage.stages.messages.to_gateway import Ready, Speech
from omnistage.stages.qwen3_tts.given_text import Qwen3TtsGivenText
from omnistage.stages.qwen3_tts.model_config import BASE, VOICE_DESIGN, load_config, talker_config
from omnistage.stages.qwen3_tts.step_schema import VOICE, talker_schema
from omnistage.stages.qwen3_tts.talker_options import Generation, SpeakerOptions
from omnistage.stages.qwen3_tts.talker_prompt import (
    AUTO,
    SpeechIds,
    SpokenText,
    TalkerPrompt,
    TalkerVoice,
    talker_prompt,
)
from omnistage.stages.qwen3_tts.voice_features import VoiceEncoder, VoiceFeatures
from omnistage.stages.speech.entry import given_text, longest_text
from omnistage.stages.speech.talker_parts import SpokenPrompt, TalkerEngine
from omnistage.stages.speech.talker_stage import TalkerStage, noise_seed
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.step.request_options import CodeSampling, late_input_options
from omnistage.stages.vllm.step.step_schema import ColumnLayout
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.requests.coming_text import ComingText, ComingTexts
from omnistage.stages.worker.requests.own_feed import OwnFeed
from omnistage.stages.worker.stage import Opened, StagePorts

logger = logging.getLogger(__name__)

SMALL = "0b6"  # the size of CustomVoice that was not taught to follow instructions


class Talker(TalkerStage):
    """Speaks given texts: with a voice that it knows, that is described, or of a sound."""

    _options: SpeakerOptions

    options_class = SpeakerOptions

    def __init__(self, ports: StagePorts) -> None:
        self._config = load_config(ports.model)
        self._ids = SpeechIds.of(self._config)
        super().__init__(ports, list(self._ids.speakers))
        self._type: str = self._config.tts_model_type
        talker = self._config.talker_config
        self._schema = talker_schema(talker["num_code_groups"], self._type == BASE)
        self._layout = ColumnLayout(self._schema.columns)
        self._text = Qwen3TtsGivenText(ports.model, self._ids)
        self._generation = Generation.of(ports.model)
        self.defaults = self._generation.defaults
        self._texts = ComingTexts()  # those of which more may come
        self._prompted: dict[str, asyncio.Event] = {}  # of these: set once their prompts are made
        self._making = ThreadPoolExecutor(1, "omnistage-voices")  # one voice at a time
        self._voices: VoiceEncoder | None = None

    async def start(self) -> Ready:
        """Load the engine, and then what makes voices.

        An engine's process may be forked, and hangs if torch has used OpenMP in this one before.
        """
        ready = await super().start()
        self.load_voices()
        return ready

    def load_voices(self) -> None:
        """Load what makes voices of sounds, for a model that speaks with them."""
        if self._type == BASE:
            has_weights = self._ports.engine.get("load_format") != "dummy"
            folder = self._options.voices
            self._voices = VoiceEncoder(self._ports.model, folder, has_weights=has_weights)

    @property
    def parts(self) -> TalkerEngine:
        """A frame is computed when its first code is fed, so the last token is never heard."""
        return TalkerEngine(
            self._schema, talker_config, ModelPart("talker."), (self._ids.codec_eos,), num_unheard=1
        )

    @property
    def speech(self) -> Speech:
        """Returns what it can be told beside a text."""
        return Speech(
            languages=self._ids.named_languages,
            takes_pieces=self._ports.own_feed is not None,
            takes_sound=self._type == BASE,
            needs_sound=self._type == BASE,
            needs_instructions=self._type == VOICE_DESIGN,
            max_text=longest_text(self._max_model_len),
        )

    @property
    def _is_whole(self) -> bool:
        """The reference streams the text of Base models unless it is told otherwise."""
        if self._options.text is None:
            return self._type != BASE
        return self._options.text == "whole"

    def warm_up_prompt(self, request_id: str, length: int) -> SpokenPrompt:
        """A text of so many tokens."""
        speaker = self._ids.speakers.get(self.default_speaker)
        text = SpokenText(role=(0, 0, 0), text=(0,) * max(1, length), instructions=())
        prompt = talker_prompt(self._ids, text, TalkerVoice(speaker), None, is_whole=True)
        return self._spoken(request_id, prompt)

    async def prompt_of(self, opened: Opened, speaker: str) -> SpokenPrompt:
        """Returns the prompt of a given text, or of its beginning: none of it, if more comes."""
        body = given_text(opened)
        is_open = body.is_open
        language = self._language(body.language or AUTO, speaker)
        features = await self._features(opened, body.reference)
        text = self._text_of(body, "" if is_open else body.text)
        if not is_open:
            self._tell_tokens(opened.id, text)
        if features is None:
            voice = TalkerVoice(self._ids.speakers.get(speaker))
        else:
            voice = TalkerVoice(VOICE, features.codes if text.reference else None)
        is_whole = self._is_whole and not is_open
        prompt = talker_prompt(self._ids, text, voice, language, is_whole)
        spoken = self._spoken(opened.id, prompt, features, voice, complete=not is_open)
        if is_open:
            self._prompted[opened.id].set()
        return spoken

    def _tell_tokens(self, request_id: str, text: SpokenText) -> None:
        num_tokens = len(text.instructions) + len(text.role) + len(text.text)
        self._ports.send_input_tokens(request_id, num_tokens)

    def _language(self, name: str, speaker: str) -> int | None:
        known = [AUTO, *self._ids.named_languages]
        if name.lower() not in known:
            allowed = ", ".join(known)
            raise RequestError(
                400, f"unknown language {name!r}; allowed: {allowed}", param="language"
            )
        return self._ids.language(name.lower(), speaker)

    def _text_of(self, body: GivenText, words: str) -> SpokenText:
        instructions = body.instructions
        if self._type == VOICE_DESIGN and not instructions:
            raise RequestError(
                400, "must describe the voice: this model has no other", param="instructions"
            )
        if self._config.tts_model_size == SMALL or self._type == BASE:
            instructions = ""
        reference = "" if body.reference is None else body.reference.text or ""
        text = self._text.spoken(words, instructions, reference)
        if not text.text and not body.is_open:
            raise RequestError(400, "has nothing that can be spoken", param="input")
        return text

    async def _features(
        self, opened: Opened, reference: VoiceSample | None
    ) -> VoiceFeatures | None:
        """Returns the features of the request's audio, which a Base model must have and no other
        may.
        """
        if self._voices is None and reference is not None:
            raise RequestError(400, "this model makes no voice of a sound", param="voice")
        if self._voices is None:
            return None
        if reference is None:
            raise RequestError(
                400, "this model speaks with the voice of a sound: give one", param="voice"
            )
        sound = opened.tensors["reference"].numpy()
        wants_codes = bool(reference.text)
        key = reference.key
        known = await asyncio.to_thread(self._voices.known, key, wants_codes)
        if known is not None:
            return known
        make = partial(self._voices.features, sound, key, wants_codes)
        return await asyncio.get_running_loop().run_in_executor(self._making, make)

    def _spoken(
        self,
        request_id: str,
        prompt: TalkerPrompt,
        features: VoiceFeatures | None = None,
        voice: TalkerVoice | None = None,
        *,
        complete: bool = True,
    ) -> SpokenPrompt:
        after_last, for_ever = prompt.ends
        options = late_input_options(
            request_id,
            self._layout.pack(len(prompt), prompt.inputs),
            first_token_position=prompt.first_text,
            ends={"tokens": (after_last, for_ever)},
            fed={"tokens": prompt.spoken},
            complete=complete,
        )
        if features is not None:
            told = {"voice": features.speaker.astype(np.float32).tobytes()}
            options = msgspec.structs.replace(options, model=told)
        frames = None if voice is None else voice.frames
        num_rows = max(len(prompt), prompt.first_text + len(prompt.spoken))
        return SpokenPrompt(
            [self._ids.codec_pad] * len(prompt),
            options,
            num_rows,
            about=None if frames is None else Lead(len(frames)),
            tensors={} if frames is None else {"lead": Tensor.from_numpy(frames)},
        )

    # A text that comes in pieces

    def more_text(self, request_id: str, text: str, last: bool) -> None:
        """The next piece of a given text."""
        self._texts.add(request_id, text, last)

    async def serve(self, opened: Opened) -> None:
        """Serves as every talker does; an open text is fed to the engine while it comes."""
        body = given_text(opened)
        if not body.is_open:
            await super().serve(opened)
            return
        text = self._texts.open(opened.id, body)
        self._prompted[opened.id] = asyncio.Event()
        feeding = asyncio.create_task(self._feed(opened, text))
        try:
            await super().serve(opened)
        finally:
            self._texts.close(opened.id)
            del self._prompted[opened.id]
            feeding.cancel()
            (failed,) = await asyncio.gather(feeding, return_exceptions=True)
            if isinstance(failed, Exception):
                logger.error("the text of request %s was not fed", opened.id, exc_info=failed)

    async def _feed(self, opened: Opened, text: ComingText) -> None:
        """Give the engine each token as soon as it is known."""
        assert self._ports.own_feed is not None  # otherwise the stage says that it takes none
        request_id = opened.id
        feed, tokens = OwnFeed(self._ports.own_feed, request_id), self._text.coming()

        def show_life() -> None:
            feed.show_life()
            self.upstream_waits(request_id, self._ports.name)

        await self._prompted[request_id].wait()  # the engine drops what comes long before it
        async for piece in text.pieces(self._ports.deadlines.next_chunk_s / 2, show_life):
            if token_ids := tokens.add(piece):
                feed.send(token_ids)
        rest = tokens.finish()
        if tokens.count:
            feed.send(rest, last=True)
        else:  # an engine that is told that it has all would speak
            self.nothing_to_say(request_id, self._ports.name)
        self._ports.send_input_tokens(request_id, tokens.count)

    # Sampling

    def frame_sampling(self, params: SamplingParams) -> CodeSampling:
        """The code predictor's own, but for whether it samples at all."""
        told = self._generation
        samples = bool(params.temperature) and told.subtalker_dosample
        return CodeSampling(
            temperature=told.subtalker_temperature if samples else 0.0,
            top_k=told.subtalker_top_k,
            top_p=told.subtalker_top_p,
            seed=noise_seed(params),
        )
