"""Runs voice clients of OpenAI's Realtime API as they are: `make realtime-clients`.

LiveKit's plugin and Pipecat are in environments of their own, agents-js below a folder of npm's.
The server has fake stages: a text with "tool" calls the function, all else is answered by 4 s of
sound. Each client has a tool called, speaks, interrupts an answer, and gets no error.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from unittest.mock import patch

from support.fakes import stages as fake_stages
from support.fakes.stages import SAMPLES_PER_FRAME
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.realtime.tools import TOOL_TEXT, Speaker, tool_call

from omnistage.server.endpoints.realtime import realtime

MODEL = "omni"
NUM_FRAMES = 4 * 24_000 // SAMPLES_PER_FRAME

LIVEKIT = """
import asyncio, json, sys
import numpy as np
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai.realtime import RealtimeModel

@llm.function_tool
async def weather(city: str) -> str:
    '''The weather of a city.'''
    return "sunny"

async def main(url):
    model = RealtimeModel(model="omni", base_url=url + "/v1", api_key="none")
    session, seen, errors, calls = model.session(), [], [], []
    for kind in ("input_speech_started", "input_speech_stopped", "generation_created"):
        session.on(kind, lambda event, kind=kind: seen.append(kind))
    session.on("error", lambda event: errors.append(str(event.error)))
    await session.update_instructions("Be short.")
    await session.update_tools([weather])
    context = session.chat_ctx.copy()
    context.add_message(role="user", content="use the tool")
    await session.update_chat_ctx(context)
    answer = await session.generate_reply()
    async for call in answer.function_stream:
        calls.append([call.name, call.arguments])
    context = session.chat_ctx.copy()
    context.insert(
        llm.FunctionCallOutput(call_id=call.call_id, name="weather", output="sunny", is_error=False)
    )
    await session.update_chat_ctx(context)
    answer, frames = await session.generate_reply(), 0
    async for message in answer.message_stream:
        async for frame in message.audio_stream:
            frames += 1
            if frames == 3:
                break
        break
    session.interrupt()
    session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=400)
    begun = asyncio.Event()
    session.on("generation_created", lambda event: begun.set())
    tone = (8000 * np.sin(np.arange(4800) / 10)).astype(np.int16).tobytes()
    for number in range(12):
        sound = tone if number < 5 else bytes(9600)
        session.push_audio(rtc.AudioFrame(sound, 24000, 1, 4800))
    await asyncio.wait_for(begun.wait(), 20)
    await asyncio.sleep(0.5)
    turns = seen.count("input_speech_stopped")
    print(json.dumps({"calls": calls, "errors": errors, "turns": turns}))
    await session.aclose()
    await model.aclose()

asyncio.run(main(sys.argv[1]))
"""
PIPECAT = """
import asyncio, json, sys
import numpy as np
from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import EndFrame, ErrorFrame, InputAudioRawFrame, LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime.events import AudioConfiguration, AudioOutput
from pipecat.services.openai.realtime.events import SessionProperties
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

logger.remove()
errors, calls, turns = [], [], []

class Watch(FrameProcessor):
    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            errors.append(str(frame))
        if type(frame).__name__ == "ProposedUserStoppedSpeakingFrame":
            turns.append(1)
        await self.push_frame(frame, direction)

async def weather(params):
    calls.append(["weather", json.dumps(params.arguments)])
    await params.result_callback({"weather": "sunny"})

async def main(url):
    schema = FunctionSchema("weather", "w", {"city": {"type": "string"}}, ["city"])
    audio = AudioConfiguration(output=AudioOutput(voice="alloy"))
    properties = SessionProperties(output_modalities=["audio"], audio=audio)
    settings = OpenAIRealtimeLLMService.Settings(
        model="omni", system_instruction="Be short.", session_properties=properties
    )
    address = url.replace("http", "ws", 1) + "/v1/realtime"
    llm = OpenAIRealtimeLLMService(api_key="none", base_url=address, settings=settings)
    llm.register_function("weather", weather)
    tools = ToolsSchema(standard_tools=[schema])
    context = LLMContext([{"role": "user", "content": "use the tool"}], tools)
    user, assistant = LLMContextAggregatorPair(context)
    params = PipelineParams(audio_in_sample_rate=24000, audio_out_sample_rate=24000)
    worker = PipelineWorker(Pipeline([user, llm, Watch(), assistant]), params=params)
    tone = (8000 * np.sin(np.arange(4800) / 10)).astype(np.int16).tobytes()

    async def drive():
        await asyncio.sleep(0.5)
        await worker.queue_frames([LLMRunFrame()])
        await asyncio.sleep(3)
        for number in range(24):  # twice; the second time into the answer
            sound = tone if number % 12 < 5 else bytes(9600)
            await worker.queue_frame(InputAudioRawFrame(sound, 24000, 1))
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), drive())
    print(json.dumps({"calls": calls, "errors": errors, "turns": len(turns)}))

asyncio.run(asyncio.wait_for(main(sys.argv[1]), 60))
"""
AGENTS = """
import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents-realtime';
import { z } from 'zod';

const calls = [], errors = [], kinds = [];
const weather = tool({
  name: 'weather', description: 'Weather', parameters: z.object({ city: z.string() }),
  execute: async (given) => { calls.push(['weather', JSON.stringify(given)]); return 'sunny'; },
});
const agent = new RealtimeAgent({ name: 'a', instructions: 'Be short.', tools: [weather] });
const session = new RealtimeSession(agent, { transport: 'websocket', model: 'omni' });
session.on('error', (event) => errors.push(JSON.stringify(event)));
session.transport.on('*', (event) => kinds.push(event.type));
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const url = process.argv[2].replace('http', 'ws') + '/v1/realtime?model=omni';
await session.connect({ apiKey: 'none', url });
await wait(300);
session.sendMessage('use the tool');
await wait(2500);
const tone = new Int16Array(4800).map((_, at) => 8000 * Math.sin(at / 10));
for (let number = 0; number < 24; number++) {
  session.sendAudio(number % 12 < 5 ? tone.buffer : new ArrayBuffer(9600));
  await wait(50);
}
await wait(1500);
session.close();
const turns = kinds.filter((kind) => kind === 'input_audio_buffer.speech_stopped').length;
console.log(JSON.stringify({ calls, errors, turns }));
process.exit(0);
"""


def check(name: str, command: list[str], gateway: RunningGateway, folder: Path) -> None:
    """Run a client, and compare what it reports."""
    done = subprocess.run(
        [*command, gateway.url], capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["errors"] == [], report
    ((tool, arguments),) = report["calls"]
    assert (tool, json.loads(arguments)) == ("weather", {"city": "Paris"})
    assert report["turns"] >= 1, report
    gateway.wait_until_idle()
    print(f"ok: {name}", flush=True)  # noqa: T201


def main() -> None:
    """Run each client against one server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--livekit", type=Path, required=True, help="its Python")
    parser.add_argument("--pipecat", type=Path, required=True, help="its Python")
    parser.add_argument("--agents", type=Path, required=True, help="a folder with node_modules")
    given = parser.parse_args()
    fake_stages.SCRIPTS[TOOL_TEXT] = tool_call
    fake_stages.FRAMES[:] = [NUM_FRAMES // 4] * 4
    fake_stages.FakeCode2Wav = Speaker  # type: ignore[misc]
    program = given.agents.resolve() / "client.mjs"
    program.write_text(AGENTS)
    graph = {**OMNI, "served_model_name": MODEL}
    with (
        patch.object(realtime, "silero_file", lambda: None),  # for tones
        tempfile.TemporaryDirectory() as name,
        running_gateway(Path(name), graph, arena_mb=16) as gateway,
    ):
        folder = Path(name)
        check("agents-js", ["node", str(program)], gateway, program.parent)
        check("LiveKit", [str(given.livekit.absolute()), "-c", LIVEKIT], gateway, folder)
        check("Pipecat", [str(given.pipecat.absolute()), "-c", PIPECAT], gateway, folder)


if __name__ == "__main__":
    main()
