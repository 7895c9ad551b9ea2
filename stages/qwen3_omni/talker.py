"""The talker stage: thinker tokens in, codec frames out; the frames leave from the engine."""

import asyncio
import itertools
import logging
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
import numpy as np
import vllm.envs
from transformers import AutoConfig, GenerationConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerModel
from transformers.utils import GENERATION_CONFIG_NAME
from vllm.outputs import RequestOutput

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.messages.edge import NothingToSay, Open, Waits
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen3_omni.speech import ThinkerPrompt
from omnistage.stages.qwen3_omni.step_schema import TALKER_LAYOUT, talker_schema
from omnistage.stages.qwen3_omni.talker_model import talker_config
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, TalkerPrompt, talker_prompt
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind, SamplingParams
from omnistage.stages.vllm.control import EngineControl
from omnistage.stages.vllm.engine import make_engine, refuse_preemption
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.fit import ModelPart
from omnistage.stages.vllm.late_inputs import late_input_options
from omnistage.stages.vllm.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step import OVERDUE
from omnistage.stages.vllm.traces import trace_headers
from omnistage.stages.vllm.warm_up import warm_up
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts
from omnistage.stages.worker.watch import overdue

logger = logging.getLogger(__name__)

# Defaults of the reference's generate(); the code predictor samples with its own when it samples.
TEMPERATURE, TOP_K, TOP_P, REPETITION_PENALTY = 0.9, 50, 1.0, 1.05
PREDICTOR_TOP_K, PREDICTOR_TOP_P = 50, 0.8
# Our process hears of a request's first code, and then of all others at its end.
ALL_CODES = 1 << 30
NO_WEIGHTS = "the talker keeps tables that it made from its checkpoint while it loaded"
TALKER = ModelPart("talker.", Qwen3OmniMoeTalkerModel)


def derived_seed(seed: int, stage: str) -> int:
    """A stage's own seed from the request's."""
    return zlib.crc32(f"{seed}/{stage}".encode())


def request_options(
    request_id: str,
    ids: SpeechIds,
    prompt: TalkerPrompt,
    tokens: Sequence[int] = (),
    complete: bool = False,
) -> dict[str, Any]:
    """What the talker's engine is told of a request; `tokens`: the first that are spoken."""
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


def generation_config_folder(codec_eos: int) -> Path:
    """A folder with a talker's generation config; the model's own speaks of the thinker.

    vLLM takes its EOS for every engine's, and with `min_tokens` writes to the logits at that id,
    which the talker's logits do not have. The folder is the same at every start, because its name
    is part of the key under which vLLM keeps compiled code.
    """
    folder = Path(vllm.envs.VLLM_CACHE_ROOT) / "omnistage" / f"talker-eos-{codec_eos}"
    if not (folder / GENERATION_CONFIG_NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as made:  # another start may read meanwhile
            GenerationConfig(eos_token_id=codec_eos).save_pretrained(made)
            (Path(made) / GENERATION_CONFIG_NAME).replace(folder / GENERATION_CONFIG_NAME)
    return folder


class TalkerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stage's `options`; `prefill_part` is as in BridgeConfig."""

    prefill_part: Annotated[int, msgspec.Meta(ge=0)] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "TalkerOptions":
        """From the graph; raises ValueError for what the talker does not know."""
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"options of the talker: {error}") from None


class Talker(EngineStage):
    """One AsyncLLM whose requests wait for their inputs in its scheduler."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._options = TalkerOptions.of(ports.options)
        self._config = AutoConfig.from_pretrained(ports.model)
        self._ids = SpeechIds.of(self._config)
        self._silent: dict[str, asyncio.Event] = {}
        self._edges: dict[str, Sequence[Downstream]] = {}  # of each request, those that are live

    async def start(self) -> Ready:
        """Load, and speak two frames."""
        ports = self._ports
        bridge = BridgeConfig(
            schema=talker_schema(self._config.talker_config),
            feeds=ports.feeds,
            first_chunk_s=ports.deadlines.first_chunk_s,
            next_chunk_s=ports.deadlines.next_chunk_s,
            prefill_part=self._options.prefill_part,
            sinks=sinks_of(ports.downstream, Payload.CODES),
            ledger=ports.ledger,
        )
        options = {
            "skip_tokenizer_init": True,
            "generation_config": str(generation_config_folder(self._ids.codec_eos)),
            **ports.engine,
            "enable_prefix_caching": False,
            "stream_interval": ALL_CODES,
        }
        self._engine = make_engine(
            AsyncLLM,
            ports.model,
            options,
            bridge,
            talker_config,
            stage=ports.name,
            part=TALKER,
        )
        refuse_preemption(self._engine)
        self._max_model_len = self._engine.model_config.max_model_len
        await self._warm_up()
        self._control = EngineControl(self._engine, NO_WEIGHTS)
        return Ready(
            speakers=sorted(self._ids.speakers),
            max_model_len=self._max_model_len,
            commands=self._control.commands,
        )

    async def _warm_up(self) -> None:
        numbers = itertools.count()

        async def answer(length: int, **filters: Any) -> None:
            wanted = {"top_k": 0, "top_p": 1.0, **filters} if filters else {}
            await self._speak_nothing(f"warm-up-{next(numbers)}", length, wanted)

        await answer(0)
        await warm_up(self._engine.vllm_config, answer)

    async def _speak_nothing(self, request_id: str, length: int, wanted: Mapping[str, Any]) -> None:
        """Two frames for nobody, after a prompt of at least so many tokens."""
        ids = self._ids
        speaker = min(ids.speakers)
        header = [ids.im_start, ids.assistant, 0]
        shortest = talker_prompt(ids, [ids.im_start, ids.user, *header], [], speaker)
        user = [ids.im_start, ids.user, *[0] * max(0, length - len(shortest))]
        prompt = talker_prompt(ids, [*user, *header], [], speaker)
        options = request_options(request_id, ids, prompt, tokens=(0,), complete=True)
        num_frames = min(2, self._max_model_len - len(prompt) - 1)
        params = self._sampling({"max_tokens": num_frames, "ignore_eos": True, **wanted}, 0)
        params.extra_args = {"omnistage": {**options, "export": False}}
        async for _ in self._engine.generate(self._prompt(len(prompt)), params, request_id):
            pass

    def _prompt(self, length: int) -> Any:
        return {"prompt_token_ids": [self._ids.codec_pad] * length}

    def _sampling(self, wanted: Mapping[str, Any], seed: int | None) -> SamplingParams:
        """Parameters of code 0; n frames need n + 1 tokens: the last is never fed back.

        An end that is to be ignored is not sampled either: it is no sound.
        """
        max_tokens = wanted.get("max_tokens", self._max_model_len) + 1
        return SamplingParams(
            temperature=wanted.get("temperature", TEMPERATURE),
            top_k=wanted.get("top_k", TOP_K),
            top_p=wanted.get("top_p", TOP_P),
            repetition_penalty=wanted.get("repetition_penalty", REPETITION_PENALTY),
            seed=wanted.get("seed", seed),
            max_tokens=max_tokens,
            min_tokens=max_tokens if wanted.get("ignore_eos") else wanted.get("min_tokens", 0),
            stop_token_ids=[self._ids.codec_eos],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    async def serve(self, opened: Opened) -> None:
        """Announce the request downstream, then run it to its end."""
        request_id, request = opened.id, opened.request
        speaker = request.speaker or self._default_speaker
        if speaker.lower() not in self._ids.speakers:
            allowed = ", ".join(sorted(self._ids.speakers))
            raise RequestError(
                400, f"unknown voice {speaker!r}; allowed: {allowed}", param="audio.voice"
            )
        edges = self._ports.live(request)
        self._say(request_id, edges, Open(request))
        silent = self._silent.setdefault(request_id, asyncio.Event())
        self._edges[request_id] = edges
        speaking = asyncio.create_task(self._speak(opened, speaker))
        waiting = asyncio.create_task(silent.wait())
        try:
            await asyncio.wait({speaking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                await speaking
            else:
                self._say(request_id, edges, NothingToSay())
        finally:
            self._silent.pop(request_id, None)
            self._edges.pop(request_id, None)
            waiting.cancel()
            speaking.cancel()
            await asyncio.gather(speaking, waiting, return_exceptions=True)

    def _say(
        self, request_id: str, edges: Sequence[Downstream], message: Open | NothingToSay | Waits
    ) -> None:
        for edge in edges:
            edge.open.send(Chunk(request_id, message, last=True))

    def nothing_to_say(self, request_id: str, source: str) -> None:
        """The answer has no text: nothing will be spoken."""
        event = self._silent.get(request_id)
        if event is not None:
            event.set()

    def upstream_waits(self, request_id: str, source: str) -> None:
        """The thinker waits for its client: so does who waits for us."""
        self._say(request_id, self._edges.get(request_id, ()), Waits())

    @property
    def _default_speaker(self) -> str:
        speakers = self._ids.speakers
        return "ethan" if "ethan" in speakers else min(speakers)

    async def _speak(self, opened: Opened, speaker: str) -> None:
        assert isinstance(opened.message, Open)
        request_id, request = opened.id, opened.request
        grids = opened.message.read(ThinkerPrompt).grids
        prompt_ids = opened.tensors["prompt"].numpy().tolist()
        prompt = talker_prompt(self._ids, prompt_ids, grids, speaker)
        num_rows = len(prompt) + len(prompt.lead)
        if num_rows + 2 > self._max_model_len:
            raise RequestError(
                400,
                f"the talker's prompt has {num_rows} rows; at most {self._max_model_len - 2}",
                param="messages",
                code="context_length_exceeded",
            )
        wanted = request.stage_params.get(self._ports.name, {})
        params = self._sampling(wanted, self._seed(request))
        options = request_options(request_id, self._ids, prompt, tokens=prompt.lead)
        options["to"] = [edge.target for edge in self._ports.live(request, Payload.CODES)]
        random = np.random.default_rng()
        options["sampling"] = {
            "temperature": 1.0 if params.temperature else 0.0,  # not the talker's
            "top_k": PREDICTOR_TOP_K,
            "top_p": PREDICTOR_TOP_P,
            "seed": int(random.integers(1 << 31)) if params.seed is None else params.seed,
        }
        params.extra_args = {"omnistage": options}
        generated = self._engine.generate(
            self._prompt(len(prompt)),
            params,
            request_id,
            trace_headers=trace_headers(request, self._ports.name),
        )
        async for output in generated:
            self._mark_prefill(request_id, output)
            self._ports.mark(request_id, "first_code")
            self._ports.send_marks(request_id)
            if output.outputs[0].stop_reason == OVERDUE:
                raise overdue(self._ports.source, self._ports.name)

    def _mark_prefill(self, request_id: str, output: RequestOutput) -> None:
        """When the engine first took rows of the prompt; it does not say so without statistics."""
        begun_s = getattr(output.metrics, "scheduled_ts", 0.0)
        if begun_s:
            self._ports.mark(request_id, "first_prefill", round(begun_s * 1e9))

    def _seed(self, request: Request) -> int | None:
        return None if request.seed is None else derived_seed(request.seed, self._ports.name)
