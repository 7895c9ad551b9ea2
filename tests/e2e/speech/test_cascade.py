"""Three tiny models that no edge joins, by their graph file: each alone, and a session."""

import asyncio
import base64
import io
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from support.models.tiny_whisper import WhisperReference, write_tiny_whisper
from support.realtime.client import silence, tone
from support.realtime.order import check_event
from support.servers.server import TinyServer, running_server

from omnistage.server.media.sound import SoundTrack
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.checkpoint.tiny_asr import write_tiny_asr
from omnistage.stages.checkpoint.tiny_text import write_tiny_text
from omnistage.stages.qwen3_tts.family import FAMILY as TTS

EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
MODEL = "tiny-cascade"
EVENT_S = 60.0

pytestmark = pytest.mark.engine


def write_models(folder: Path, write_asr: Callable[[Path, int], None]) -> None:
    for name, write in (
        ("asr", write_asr),
        ("text", write_tiny_text),
        ("tts", resolve_name(TTS.tiny["qwen3-tts"].write)),
    ):
        write(folder / "cascade" / name, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    folder = tmp_path_factory.mktemp("cascade")
    write_models(folder, write_tiny_asr)
    graph = str(GRAPHS / "cascade_tiny.yaml")
    with running_server(graph, folder / "log", cwd=folder) as running:
        yield running


@contextmanager
def whisper_server(folder: Path) -> Iterator[TinyServer]:
    """The same graph with a tiny Whisper, whose encoder takes 1,500 positions at once."""
    write_models(folder, write_tiny_whisper)
    graph = yaml.safe_load((GRAPHS / "cascade_tiny.yaml").read_text())
    transcriber = graph["stages"]["transcriber"]
    engine = {**transcriber["engine"], "max_num_batched_tokens": 2048}
    del engine["max_model_len"]
    graph["stages"]["transcriber"] = {**transcriber, "engine": engine}
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph))
    with running_server(str(path), folder / "log", cwd=folder) as running:
        yield running


def wav_of(samples: npt.NDArray[np.int16]) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 24_000, 0, "NONE", ""))
        sound.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def transcript_of(server: TinyServer, samples: npt.NDArray[np.int16]) -> str:
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", files={"file": wav_of(samples)}, timeout=600
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


def chat(server: TinyServer, messages: list[Any], **more: Any) -> str:
    body = {"model": MODEL, "messages": messages, "temperature": 0, **more}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


class Spoken:
    """A session by OpenAI's SDK, each event parsed strictly and checked by the specification."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[Any] = []

    async def until(self, kind: str) -> Any:
        while True:
            async with asyncio.timeout(EVENT_S):
                event = EVENT.validate_json(await self.connection.recv_bytes())
            check_event(event.to_dict(mode="json", exclude_unset=True))
            self.events.append(event)
            assert event.type != "error", event
            if event.type == kind:
                return event

    async def speak(self, samples: npt.NDArray[np.int16]) -> None:
        for piece in np.split(samples, range(480, len(samples), 480)):
            audio = base64.b64encode(piece.astype("<i2").tobytes()).decode()
            await self.connection.input_audio_buffer.append(audio=audio)

    def pcm(self) -> bytes:
        deltas = [one for one in self.events if one.type == "response.output_audio.delta"]
        return b"".join(base64.b64decode(one.delta) for one in deltas)


async def test_openais_sdk_talks_to_three_models_and_speaks_into_the_answer(
    server: TinyServer,
) -> None:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    async with client.realtime.connect(model=MODEL) as connection:
        spoken = Spoken(connection)
        await spoken.until("session.created")
        session: Any = {
            "type": "realtime",
            "instructions": "Be short.",
            "max_output_tokens": 12,
            "audio": {"input": {"transcription": {"model": "whisper-1"}}},
        }
        await connection.session.update(session=session)
        updated = await spoken.until("session.updated")
        assert updated.session.output_modalities == ["audio"]
        await spoken.speak(np.concatenate([tone(0.5), silence(0.8)]))
        committed = await spoken.until("input_audio_buffer.committed")
        kind = "conversation.item.input_audio_transcription.completed"
        heard = await spoken.until(kind)
        assert heard.item_id == committed.item_id
        done = await spoken.until("response.done")
        assert done.response.status in ("completed", "incomplete")
        (item,) = done.response.output
        words = item.content[0].transcript
        assert words
        frames = done.response.usage.output_token_details.audio_tokens
        assert 0 < frames <= 50
        assert len(spoken.pcm()) == 2 * frames * 1920
        # The text model had the words of the transcriber, and no audio.
        details = done.response.usage.input_token_details
        assert details.audio_tokens == 0
        messages = [{"role": "system", "content": "Be short."}]
        messages += [{"role": "user", "content": heard.transcript}] if heard.transcript else []
        if len(messages) == 2:
            body = {"messages": messages, "model": MODEL, "add_generation_prompt": True}
            url = f"{server.url}/tokenize"
            answer = await asyncio.to_thread(httpx.post, url, json=body, timeout=600)
            tokens = answer.json()
            assert done.response.usage.input_tokens == tokens["count"]
        # And somebody speaks into the next answer.
        await connection.response.create(response={"max_output_tokens": 200})
        await spoken.until("response.output_audio.delta")
        await spoken.speak(tone(0.4))
        await spoken.until("input_audio_buffer.speech_started")
        begun = len(spoken.events)
        done = await spoken.until("response.done")
        assert done.response.status in ("cancelled", "completed")
        if done.response.status == "cancelled":
            assert not [one for one in spoken.events[begun:] if one.type.endswith(".delta")]
            assert done.response.status_details.reason == "turn_detected"
    await client.close()


@pytest.mark.repeat
async def test_a_whisper_transcribes_files_and_the_turns_of_a_session(tmp_path: Path) -> None:
    with whisper_server(tmp_path) as server:
        sound = np.concatenate([tone(0.5), silence(0.1)])
        (samples,) = SoundTrack(wav_of(sound), "file").samples(16_000)
        reference = WhisperReference(str(tmp_path / "cascade" / "asr"))
        words, _, ended_by = reference.expected(samples, None, "transcribe")
        assert (bool(words), ended_by) == (True, "stop")
        assert await asyncio.to_thread(transcript_of, server, sound) == words
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        async with client.realtime.connect(model=MODEL) as connection:
            spoken = Spoken(connection)
            await spoken.until("session.created")
            session: Any = {
                "type": "realtime",
                "max_output_tokens": 12,
                "audio": {
                    "input": {"transcription": {"model": "whisper-1"}, "turn_detection": None}
                },
            }
            await connection.session.update(session=session)
            await spoken.speak(sound)
            await connection.input_audio_buffer.commit()
            kind = "conversation.item.input_audio_transcription.completed"
            assert (await spoken.until(kind)).transcript == words
            await connection.response.create()
            done = await spoken.until("response.done")
            assert done.response.status in ("completed", "incomplete")
            assert spoken.pcm()
            messages = [{"role": "user", "content": words}]
            body = {"messages": messages, "model": MODEL, "add_generation_prompt": True}
            url = f"{server.url}/tokenize"
            answer = await asyncio.to_thread(httpx.post, url, json=body, timeout=600)
            assert done.response.usage.input_tokens == answer.json()["count"]
        await client.close()


def test_an_audio_file_is_transcribed_as_openais_clients_send_it(server: TinyServer) -> None:
    text = transcript_of(server, tone(0.5))
    assert text
    assert text == transcript_of(server, tone(0.5))


def test_a_chat_and_a_speech_are_those_of_the_models_alone(server: TinyServer) -> None:
    text = chat(server, [{"role": "user", "content": "Hello"}], max_completion_tokens=12)
    assert text
    body = {"input": "Hello there.", "response_format": "pcm", "seed": 1}
    speech = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=600)
    assert speech.status_code == 200
    assert 0 < len(speech.content) <= 2 * 50 * 1920
