"""What a talker refuses, and what it says of itself, without an engine."""

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from references.qwen3_tts_inputs import sound
from references.qwen3_tts_talks import MODELS
from support.api.bodies import given_text
from support.stages.tts_talker import close_ports, opened, talker_ports
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.sweep import make_run_directory
from omnistage.stages.messages.edge import EDGE, Open, Waits
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.qwen3_tts.talker import Talker
from omnistage.stages.speech.talker_parts import SpokenPrompt
from omnistage.stages.speech.talker_stage import TalkerStage
from omnistage.stages.worker.failure import RequestError

CUSTOM_VOICE, VOICE_DESIGN, BASE = MODELS
REFERENCE = {"reference": {"key": "a", "text": None}}


@contextmanager
def talker(folder: Path, **options: Any) -> Iterator[Talker]:
    run = make_run_directory()
    ports = talker_ports(folder, run.path, list(options.items()))
    try:
        stage = Talker(ports)
        stage.load_voices()
        yield stage
    finally:
        close_ports(ports, run.path)
        run.remove()


async def made(folder: Path, body: dict[str, Any], speaker: str = "", **more: Any) -> SpokenPrompt:
    with talker(folder) as stage:
        return await stage.prompt_of(opened("request", {"input": "Yes", **body}, **more), speaker)


async def refused(folder: Path, body: dict[str, Any], **more: Any) -> tuple[str | None, str]:
    with pytest.raises(RequestError) as caught:
        await made(folder, body, **more)
    assert caught.value.status == 400
    return caught.value.param, str(caught.value)


async def test_an_unknown_language_is_refused_with_the_allowed_ones(tts_checkpoints: Path) -> None:
    for name in ("klingon", "sichuan_dialect"):
        param, message = await refused(tts_checkpoints / CUSTOM_VOICE, {"language": name})
        assert param == "language"
        assert message == f"unknown language {name!r}; allowed: auto, chinese, english"


async def test_languages_are_known_in_any_case(tts_checkpoints: Path) -> None:
    folder = tts_checkpoints / CUSTOM_VOICE
    one, other = [await made(folder, {"language": name}) for name in ("English", "english")]
    assert one.options.late is not None
    assert other.options.late is not None
    assert one.options.late.inputs == other.options.late.inputs


async def test_voices_are_loaded_once_the_engine_has_been_forked(
    tts_checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    async def start(_: TalkerStage) -> Ready:
        loaded.append("engine")
        return Ready()

    def load(*_: object, **__: object) -> None:
        loaded.append("voices")

    monkeypatch.setattr(TalkerStage, "start", start)
    monkeypatch.setattr("omnistage.stages.qwen3_tts.talker.VoiceEncoder", load)
    ports = talker_ports(tts_checkpoints / BASE, tmp_path)
    try:
        await Talker(ports).start()
    finally:
        close_ports(ports, tmp_path)
    assert loaded == ["engine", "voices"]


async def test_a_base_model_without_a_sound_has_no_voice(tts_checkpoints: Path) -> None:
    param, message = await refused(tts_checkpoints / BASE, {"reference": None})
    assert (param, message) == ("voice", "this model speaks with the voice of a sound: give one")


async def test_only_a_base_model_takes_a_sound(tts_checkpoints: Path) -> None:
    for model in (CUSTOM_VOICE, VOICE_DESIGN):
        body = {**REFERENCE, "instructions": "Low."}
        param, message = await refused(tts_checkpoints / model, body, sound=sound(24_000))
        assert (param, message) == ("voice", "this model makes no voice of a sound")


async def test_a_voice_that_is_not_described_cannot_be_designed(tts_checkpoints: Path) -> None:
    param, message = await refused(tts_checkpoints / VOICE_DESIGN, {})
    assert (param, message) == ("instructions", "must describe the voice: this model has no other")


async def test_a_text_of_nothing_is_refused(tts_checkpoints: Path) -> None:
    param, _ = await refused(tts_checkpoints / CUSTOM_VOICE, {"input": ""})
    assert param == "input"


async def test_names_of_special_tokens_are_text(tts_checkpoints: Path) -> None:
    folder = tts_checkpoints / CUSTOM_VOICE
    plain, marked = [await made(folder, {"input": text}) for text in ("a", "a<|im_end|>")]
    assert len(marked.ids) - len(plain.ids) == len("<|im_end|>")


async def test_instructions_are_ignored_by_models_that_do_not_know_them(
    tts_checkpoints: Path, tmp_path: Path
) -> None:
    from omnistage.stages.qwen3_tts.checkpoint.writers import write_small_custom_voice

    write_small_custom_voice(tmp_path / "small")
    told = {"instructions": "Be glad."}
    plain, small = [await made(tmp_path / "small", body) for body in ({}, told)]
    assert len(small.ids) == len(plain.ids)
    large = await made(tts_checkpoints / CUSTOM_VOICE, told)
    assert len(large.ids) > len(plain.ids)
    body = {**REFERENCE, **told}
    base = await made(tts_checkpoints / BASE, body, sound=sound(24_000))
    assert len(base.ids) < len(large.ids)


async def test_the_graph_file_may_have_the_text_streamed(tts_checkpoints: Path) -> None:
    request = opened("request", {"input": "Yes"})
    lengths = []
    for text in ("whole", "streamed"):
        with talker(tts_checkpoints / CUSTOM_VOICE, text=text) as stage:
            lengths.append(len((await stage.prompt_of(request, "ryan")).ids))
    assert lengths[0] - lengths[1] == len("Yes") + 1  # and the end of the text


def test_a_wrong_option_is_refused(tts_checkpoints: Path) -> None:
    with (
        pytest.raises(ValueError, match="options of the talker"),
        talker(tts_checkpoints / CUSTOM_VOICE, text="backwards"),
    ):
        pass


def test_sampling_is_that_of_the_generation_config(tts_checkpoints: Path) -> None:
    with talker(tts_checkpoints / CUSTOM_VOICE) as stage:
        defaults = stage.defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.9, 50, 1.0)
    assert (defaults.repetition_penalty, defaults.min_tokens) == (1.05, 2)


async def test_who_gets_the_codes_hears_that_the_upstream_of_a_request_waits(
    tts_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def speak(*_: Any) -> None:
        await asyncio.Event().wait()

    with talker(tts_checkpoints / CUSTOM_VOICE) as stage:
        told: list[tuple[str, Any]] = []
        to_code2wav = stage._ports.downstream[0].open
        monkeypatch.setattr(
            to_code2wav, "send", lambda chunk: told.append((chunk.request_id, chunk.message))
        )
        monkeypatch.setattr(stage, "_speak", speak)
        serving = asyncio.create_task(stage.serve(opened("slow", {"input": "Yes"})))
        await asyncio.sleep(0.01)
        for name in ("slow", "unknown"):
            stage.upstream_waits(name, "thinker")
        assert told == [("slow", Waits())]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_text_in_pieces_waits_for_its_prompt_and_shows_life_with_each_piece(
    tts_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames come as slowly as the text; the engine drops what comes long before its prompt."""
    with talker(tts_checkpoints / CUSTOM_VOICE) as stage:
        request = opened("request", {"input": "One two", "open": True})
        told: list[str] = []
        monkeypatch.setattr(stage, "upstream_waits", lambda name, source: told.append(name))
        text = stage._texts.open(request.id, given_text(request.request))
        stage._prompted[request.id] = asyncio.Event()
        feeding = asyncio.create_task(stage._feed(request, text))
        await asyncio.sleep(0.05)
        assert told == []
        await stage.prompt_of(request, stage.default_speaker)
        await until(lambda: told)
        assert len(told) == 1
        for number, piece in enumerate((" thr", "ee", " four"), 2):
            stage.more_text(request.id, piece, False)
            await until(lambda count=number: len(told) == count)  # type: ignore[misc]
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def test_an_engine_is_not_told_that_it_has_all_of_a_text_that_stays_empty(
    tts_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would speak until it is ended."""
    with talker(tts_checkpoints / CUSTOM_VOICE) as stage:
        request = opened("request", {"input": "", "open": True})
        silent: list[str] = []
        monkeypatch.setattr(stage, "nothing_to_say", lambda name, source: silent.append(name))
        text = stage._texts.open(request.id, given_text(request.request))
        stage._prompted[request.id] = asyncio.Event()
        await stage.prompt_of(request, stage.default_speaker)
        stage.more_text(request.id, "", last=True)
        await stage._feed(request, text)
        assert silent == [request.id]
        (edge,) = stage._ports.downstream
        connector = make_connector("shm", Path(edge.rows.directory), {"credit": 0})
        with closing(connector.receiver("feed", EDGE)) as engine:
            fed = list(iter(engine.receive, None))
        assert not any(chunk.last or chunk.tensors for chunk in fed)


async def test_the_vocoder_can_read_what_a_talker_announces(tts_checkpoints: Path) -> None:
    """Without the body, which is the talker's alone."""

    def generate(*_: Any, **__: Any) -> None:
        raise Announced

    with talker(tts_checkpoints / CUSTOM_VOICE) as stage:
        stage._max_model_len = 512
        stage._engine = SimpleNamespace(generate=generate)
        (edge,) = stage._ports.downstream
        connector = make_connector("shm", Path(edge.rows.directory), {"credit": 0})
        with pytest.raises(Announced):
            await stage._speak(opened("request", {"input": "Yes"}), stage.default_speaker)
        with closing(connector.receiver("open", EDGE)) as vocoder:
            announced = vocoder.receive()
        assert announced is not None
        assert isinstance(announced.message, Open)
        assert announced.message.request.body is None


class Announced(Exception):
    """The engine was asked, which is after the announcement."""
