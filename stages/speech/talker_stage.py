"""The stage of a talker: its engine, and each request's way through it; codes leave the engine."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from vllm.outputs import RequestOutput

from omnistage.connectors.chunk import Tensor
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import Payload
from omnistage.stage_configs.rules.own_arguments import TALKER, with_own
from omnistage.stages.messages.edge import NOTHING, NothingToSay, Open, Waits, described
from omnistage.stages.messages.to_gateway import Ready, Speech
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.speech.talker_options import (
    TalkerOptions,
    generation_config_folder,
)
from omnistage.stages.speech.talker_parts import SamplingDefaults, SpokenPrompt, TalkerEngine
from omnistage.stages.vllm.answers.seeds import derived_seed
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.answers.truncation import take_over
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind, SamplingParams
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.engine.warm_up import kinds_of_speech, warm_up
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.step.ports import BridgeConfig, sinks_of
from omnistage.stages.vllm.step.request_options import CodeSampling
from omnistage.stages.vllm.step.step import OVERDUE
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.lanes import lane_of
from omnistage.stages.worker.requests.watch import overdue
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts

NO_WEIGHTS = "the talker keeps tables that it made from its checkpoint while it loaded"


class TalkerStage(EngineStage, ABC):
    """One AsyncLLM whose requests may wait for their inputs in its scheduler."""

    defaults: SamplingDefaults
    options_class: ClassVar[type[TalkerOptions]] = TalkerOptions

    def __init__(self, ports: StagePorts, speakers: Sequence[str]) -> None:
        self._ports = ports
        self._options = self.options_class.of(ports.options)
        self._options.check(ports.engine)
        self._speakers = sorted(speakers)
        self._silent: dict[str, asyncio.Event] = {}
        self._edges: dict[str, Sequence[Downstream]] = {}  # of each request, those that are live

    # What a family says

    @property
    @abstractmethod
    def parts(self) -> TalkerEngine:
        """Returns what its engine is made with."""

    @abstractmethod
    async def prompt_of(self, opened: Opened, speaker: str) -> SpokenPrompt:
        """A request's prompt; raises RequestError for what cannot be spoken."""

    @abstractmethod
    def warm_up_prompt(self, request_id: str, length: int) -> SpokenPrompt:
        """One that says next to nothing, of at least so many tokens, with all of its inputs."""

    def frame_sampling(self, params: SamplingParams) -> CodeSampling:
        """How the engine's model samples a frame's codes besides its first, if it has any."""
        return CodeSampling()

    @property
    def speech(self) -> Speech | None:
        """For `Ready`, of an entry of the graph."""
        return None

    @property
    def default_speaker(self) -> str:
        """Who speaks if nobody is named; empty: nobody."""
        return self._speakers[0] if self._speakers else ""

    # Start

    async def start(self) -> Ready:
        """Load, and speak two frames."""
        ports, parts = self._ports, self.parts
        bridge = BridgeConfig(
            schema=parts.schema,
            feeds=ports.feeds,
            first_chunk_s=ports.deadlines.first_chunk_s,
            next_chunk_s=ports.deadlines.next_chunk_s,
            prefill_part=self._options.prefill_part,
            sinks=sinks_of(ports.downstream, Payload.CODES),
            check_ranks=self._options.check_ranks,
            ledger=ports.ledger,
        )
        options = {
            "skip_tokenizer_init": True,
            "generation_config": str(generation_config_folder(parts.end_ids[0])),
            **with_own(ports.engine, TALKER),
            **parts.arguments,
        }
        self._engine = make_engine(
            AsyncLLM,
            ports.model,
            options,
            bridge,
            parts.config,
            stage=ports.name,
            part=parts.part,
        )
        self._max_model_len = self._engine.model_config.max_model_len
        await self._warm_up()
        self._control = EngineControl(self._engine, NO_WEIGHTS, stage=self._ports.name)
        return Ready(
            speakers=self._speakers,
            max_model_len=self._max_model_len,
            commands=self._control.commands,
            speech=self.speech,
        )

    async def _warm_up(self) -> None:
        numbers = itertools.count()

        async def answer(length: int, **filters: Any) -> None:
            wanted = {"top_k": 0, "top_p": 1.0, **filters} if filters else {}
            await self._speak_nothing(f"warm-up-{next(numbers)}", length, wanted)

        await answer(0)
        await warm_up(self._engine.vllm_config, answer, kinds_of_speech())

    async def _speak_nothing(
        self, request_id: str, length: int, wanted: Mapping[str, object]
    ) -> None:
        """Two frames for nobody in each lane, after a prompt of at least so many tokens."""
        speaking = (
            self._speak_nothing_in(lane, f"{request_id}-{lane}", length, wanted)
            for lane in range(self._ports.num_lanes)
        )
        await asyncio.gather(*speaking)

    async def _speak_nothing_in(
        self, lane: int, request_id: str, length: int, wanted: Mapping[str, object]
    ) -> None:
        prompt = self.warm_up_prompt(request_id, length)
        num_frames = min(2, self._max_model_len - len(prompt.ids) - 1)
        params = self._sampling({"max_tokens": num_frames, "ignore_eos": True, **wanted}, 0)
        params.extra_args = msgspec.structs.replace(prompt.options, to=[]).extra_args()
        take_over(params)
        ids = {"prompt_token_ids": list(prompt.ids)}
        generated = self._engine.generate(ids, params, request_id, data_parallel_rank=lane)
        async for _ in generated:
            pass

    # Sampling

    def _sampling(self, wanted: JsonMap, seed: int | None) -> SamplingParams:
        """Parameters of the first code of each frame.

        An end that is to be ignored is not sampled either: it is no sound.
        """
        defaults = self.defaults
        most = wanted.get("max_tokens", defaults.max_tokens or self._max_model_len)
        max_tokens = most + self.parts.num_unheard
        least = wanted.get("min_tokens", defaults.min_tokens)
        return SamplingParams(
            temperature=wanted.get("temperature", defaults.temperature),
            top_k=wanted.get("top_k", defaults.top_k),
            top_p=wanted.get("top_p", defaults.top_p),
            repetition_penalty=wanted.get("repetition_penalty", defaults.repetition_penalty),
            seed=wanted.get("seed", seed),
            max_tokens=max_tokens,
            min_tokens=max_tokens if wanted.get("ignore_eos") else min(least, max_tokens),
            stop_token_ids=list(self.parts.end_ids),
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _seed(self, request: Request) -> int | None:
        return None if request.seed is None else derived_seed(request.seed, self._ports.stage)

    # Requests

    async def serve(self, opened: Opened) -> None:
        """Run the request to its end, announced downstream."""
        request_id, request = opened.id, opened.request
        speaker = self._known(request.speaker or self.default_speaker)
        edges = self._ports.live(request)
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

    def _known(self, speaker: str) -> str:
        if speaker and speaker.lower() not in self._speakers:
            allowed = ", ".join(self._speakers)
            raise RequestError(
                400, f"unknown voice {speaker!r}; allowed: {allowed}", param="audio.voice"
            )
        return speaker.lower()

    def _say(
        self,
        request_id: str,
        edges: Sequence[Downstream],
        message: Open | NothingToSay | Waits,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        for edge in edges:
            edge.announce(request_id, message, tensors)

    def nothing_to_say(self, request_id: str, source: str) -> None:
        """The answer has no text: nothing will be spoken."""
        event = self._silent.get(request_id)
        if event is not None:
            event.set()

    def upstream_waits(self, request_id: str, source: str) -> None:
        """The stage before waits for its client: so does who waits for us."""
        self._say(request_id, self._edges.get(request_id, ()), Waits())

    async def _speak(self, opened: Opened, speaker: str) -> None:
        request_id, request = opened.id, opened.request
        prompt = await self.prompt_of(opened, speaker)
        if prompt.num_rows + 2 > self._max_model_len:
            raise RequestError(
                400,
                f"the talker's prompt has {prompt.num_rows} rows; at most "
                f"{self._max_model_len - 2}",
                param="messages",
                code="context_length_exceeded",
            )
        announced = Open(
            request.with_body(None),  # which is long, and ours alone
            NOTHING if prompt.about is None else described(prompt.about),
        )
        self._say(request_id, self._ports.live(request), announced, prompt.tensors)
        wanted = request.stage_params.get(self._ports.stage, {})
        if prompt.max_frames is not None:
            wanted = {"max_tokens": prompt.max_frames, **wanted}
        params = self._sampling(wanted, self._seed(request))
        to = [edge.target for edge in self._ports.live(request, Payload.CODES)]
        sampling = self.frame_sampling(params)
        options = msgspec.structs.replace(prompt.options, to=to, sampling=sampling)
        params.extra_args = options.extra_args()
        take_over(params)
        generated = self._engine.generate(
            {"prompt_token_ids": list(prompt.ids)},
            params,
            request_id,
            trace_headers=trace_headers(request, self._ports.name),
            data_parallel_rank=lane_of(request_id, self._ports.num_lanes),
        )
        async for output in generated:
            self._mark_times(request_id, output)
            self._ports.send_marks(request_id)
            if output.outputs[0].stop_reason == OVERDUE:
                raise overdue(self._ports.source, self._ports.name)

    def _mark_times(self, request_id: str, output: RequestOutput) -> None:
        """Mark the engine's own times, which are earlier than those at which it reports them.

        A frame goes straight to the next stage, and may be there before this process hears of it.
        The engine keeps no times without statistics: then there is no `first_prefill`, and
        `first_code` is now.
        """
        begun_s = getattr(output.metrics, "scheduled_ts", 0.0)
        if begun_s:
            self._ports.mark(request_id, "first_prefill", round(begun_s * 1e9))
        sampled_s = getattr(output.metrics, "first_token_ts", 0.0)
        self._ports.mark(request_id, "first_code", round(sampled_s * 1e9) or None)


def noise_seed(params: SamplingParams) -> int:
    """Return the seed of a request's frames: its own, else one that is drawn."""
    return int(np.random.default_rng().integers(1 << 31)) if params.seed is None else params.seed
