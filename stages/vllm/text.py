"""A stage that is one text model in vLLM, without a bridge."""

from contextlib import aclosing

from omnistage.stages.messages.to_gateway import Ready, TextDelta
from omnistage.stages.vllm.chat import Chat
from omnistage.stages.vllm.engine import make_engine
from omnistage.stages.vllm.engine_stage import EngineStage
from omnistage.stages.vllm.grammars import Grammars, JudgedLLM
from omnistage.stages.vllm.traces import trace_headers
from omnistage.stages.vllm.warm_up import warm_up_text
from omnistage.stages.worker.stage import Opened, StagePorts


class TextStage(EngineStage):
    """One AsyncLLM and vLLM's chat serving over it."""

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports

    async def start(self) -> Ready:
        """Load, and answer one request."""
        ports = self._ports
        self._engine = make_engine(JudgedLLM, ports.model, ports.engine, None, stage=ports.name)
        self._engine.grammars = Grammars()
        self._chat = Chat(self._engine, ports.model, ports.options)
        await warm_up_text(self._engine, self._chat)
        await self._take_control(ports, self._chat)
        max_model_len = self._engine.model_config.max_model_len
        commands = self._control.commands
        return Ready(max_model_len=max_model_len, commands=commands, loras=self._loras)

    async def serve(self, opened: Opened) -> None:
        """Stream one answer; its last chunk is the usage chunk."""
        request_id, request = opened.id, opened.request
        headers = trace_headers(request, self._ports.name)
        async with (
            self._adapters.using(request.body.get("model")),
            aclosing(self._chat.stream(request_id, request.body, headers)) as chunks,
        ):
            async for chunk in chunks:
                self._ports.mark(request_id, "first_token")
                last = not chunk["choices"]
                self._ports.send_output(request_id, TextDelta(chunk), last=last)
                if not last:
                    await self._ports.room.wait(request_id)  # the engine joins what comes meanwhile
