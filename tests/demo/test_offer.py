"""What a server offers, and which part of the page can be used with it."""

import asyncio
from pathlib import Path

import openai
import pytest
from support.bench.fake_openai import MODEL as FAKE_MODEL
from support.bench.fake_openai import FakeOpenAI
from support.gateway.cascade import CASCADE, SPEECH, TRANSCRIBER
from support.gateway.serving import IMAGES, MIXED, MODEL, OMNI, TEXT_ONLY, running_gateway

from omnistage.demo.backend import Backend
from omnistage.demo.failure import plain
from omnistage.demo.files import FileStore
from omnistage.demo.offer import LOADING, ModelOffer, learn, names_of
from omnistage.server.http.access.keys import Keys


async def learnt(url: str, key: str | None = None) -> ModelOffer:
    async with Backend.connect(url, key, FileStore(Path())).client as client:
        return await learn(client)


async def test_a_server_that_speaks_offers_its_voices(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        offer = await learnt(gateway.url)
    voices = ("chelsie", "ethan")
    assert offer == ModelOffer(MODEL, frozenset({"text", "audio"}), voices, has_timeline=True)
    assert offer.modes == ["Text", "Text and speech"]
    assert offer.tabs == {"chat", "speech", "talk", "transcription"}


async def test_a_cascade_offers_chats_of_text_and_a_transcriber_transcripts_alone(
    tmp_path: Path,
) -> None:
    for name in ("cascade", "transcriber"):
        (tmp_path / name).mkdir()
    with running_gateway(tmp_path / "cascade", CASCADE, speech=SPEECH) as gateway:
        offer = await learnt(gateway.url)
    assert offer.modes == ["Text"]
    assert offer.tabs == {"chat", "speech", "transcription"}
    with running_gateway(tmp_path / "transcriber", TRANSCRIBER) as gateway:
        offer = await learnt(gateway.url)
    assert offer.modes == []
    assert offer.tabs == {"transcription"}


async def test_a_server_of_pictures_offers_pictures_and_edits(tmp_path: Path) -> None:
    with running_gateway(tmp_path, IMAGES) as gateway:
        offer = await learnt(gateway.url)
    assert offer.modes == ["Text and image"]
    assert offer.drawing_mode is None  # it reads no questions
    assert offer.tabs == {"chat", "pictures", "edits"}


async def test_a_server_that_speaks_and_draws_offers_both_in_one_answer(tmp_path: Path) -> None:
    with running_gateway(tmp_path, MIXED) as gateway:
        offer = await learnt(gateway.url)
    assert offer.modes == ["Text", "Text and image", "Text, speech and image", "Text and speech"]
    assert offer.drawing_mode == "Text, speech and image"
    assert not offer.tabs & {"pictures", "edits"}  # it draws what it writes


async def test_a_server_of_text_offers_text(tmp_path: Path) -> None:
    with running_gateway(tmp_path, TEXT_ONLY | {"note": "It does not speak."}) as gateway:
        offer = await learnt(gateway.url)
    assert offer.modes == ["Text"]
    assert offer.tabs == {"chat", "transcription"}
    assert (offer.banner, offer.notes) == ("It does not speak.", ())


async def test_voices_that_are_not_known_yet_are_said_to_be_loading(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, loading=frozenset({"talker"})) as gateway:
        offer = await learnt(gateway.url)
    assert (offer.voices, offer.notes) == ((), (LOADING,))


async def test_a_key_is_sent_and_a_missing_one_is_told(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, keys=Keys(["secret"])) as gateway:
        assert (await learnt(gateway.url, "secret")).model == MODEL
        with pytest.raises(openai.AuthenticationError) as raised:
            await learnt(gateway.url)
    assert "API key" in plain(raised.value, gateway.url)


def test_a_server_that_does_not_say_what_it_makes_makes_text() -> None:
    with FakeOpenAI().running() as url:
        offer = asyncio.run(learnt(url))
    assert offer == ModelOffer(FAKE_MODEL, frozenset({"text"}))


async def test_a_dead_server_is_told_in_one_sentence_with_its_address() -> None:
    with pytest.raises(openai.APIConnectionError) as raised:
        await learnt("http://127.0.0.1:9")
    assert "http://127.0.0.1:9 does not answer" in plain(raised.value, "http://127.0.0.1:9")


@pytest.mark.parametrize("given", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
async def test_an_address_may_end_in_v1(given: str) -> None:
    backend = Backend.connect(given, None, FileStore(Path()))
    async with backend.client as client:
        assert (backend.url, str(client.base_url)) == ("http://a:1", "http://a:1/v1/")


@pytest.mark.parametrize(
    "answer", [{"voices": ["a", "b"]}, {"voices": [{"name": "a"}, {"name": "b"}]}]
)
def test_voices_are_names_or_objects(answer: object) -> None:
    assert names_of(answer) == ("a", "b")
    assert names_of(None) == ()
