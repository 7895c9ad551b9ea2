"""A stage that is one model of speech recognition in vLLM: speech in, its words out."""

from contextlib import aclosing

import numpy as np

from omnistage.stages.messages.body import Transcribe
from omnistage.stages.messages.to_gateway import Reading, Ready, TranscriptDelta
from omnistage.stages.vllm.answers.chat import request_error
from omnistage.stages.vllm.answers.pieced_transcript import PiecedTranscript
from omnistage.stages.vllm.answers.speech_prompts import SpeechPrompts
from omnistage.stages.vllm.answers.traces import trace_headers
from omnistage.stages.vllm.compat import CLIENT_ERRORS, AsyncLLM
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.worker.stage import Opened, StagePorts

NO_WEIGHTS = "whether vLLM reads the weights of a transcriber again was not tried"
WARM_UP_S = 1


class TranscriberStage(EngineStage):
    """One AsyncLLM of a model that vLLM transcribes with, such as Qwen3-ASR."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports

    async def start(self) -> Ready:
        """Load, and transcribe a second of silence with and without logprobs."""
        ports = self._ports
        self._engine = make_engine(AsyncLLM, ports.model, ports.engine, None, stage=ports.name)
        self._prompts = SpeechPrompts(self._engine)
        rate_hz = self._prompts.rate_hz
        for has_logprobs in (False, True):
            body = Transcribe(max_tokens=2, logprobs=has_logprobs)
            warm_up = PiecedTranscript(self._engine, self._prompts, f"warm-up-{has_logprobs}", body)
            async for _ in warm_up.chunks(np.zeros(WARM_UP_S * rate_hz, np.float32)):
                pass
        await self._engine.reset_prefix_cache()
        self._control = EngineControl(self._engine, NO_WEIGHTS, stage=ports.name)
        return Ready(
            max_model_len=self._engine.model_config.max_model_len,
            commands=self._control.commands,
            reading=Reading(audio_rate_hz=rate_hz),
        )

    async def serve(self, opened: Opened) -> None:
        """Stream the words of one audio; the last chunk has the usage."""
        request_id, request = opened.id, opened.request
        assert isinstance(request.body, Transcribe), "a transcriber gets nothing else"
        (sound,) = opened.media.values()
        opened.media.clear()
        transcript = PiecedTranscript(self._engine, self._prompts, request_id, request.body)
        headers = trace_headers(request, self._ports.name)
        try:
            async with aclosing(transcript.chunks(sound.data(), headers)) as chunks:
                async for chunk in chunks:
                    self._ports.mark(request_id, "first_token")
                    self._ports.send_output(request_id, TranscriptDelta(chunk))
                    await self._ports.room.wait(request_id)
        except CLIENT_ERRORS as error:
            raise request_error(error, {}) from error
        whole = TranscriptDelta({"choices": [], "usage": transcript.usage})
        self._ports.send_output(request_id, whole, last=True)
