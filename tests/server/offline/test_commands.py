"""What `Omni` tells its stages: to whom a command goes, with what, and what comes of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.gateway.offline import ObedientStages, engine_of, fake_omni
from support.gateway.offline_commands import STAGES, WEIGHTS, unread
from support.gateway.serving import OMNI
from support.waiting import wait_until

from omnistage import BadRequest, Closed, Omni, OmniError, Unavailable
from omnistage.stages.messages.to_gateway import CommandResult, Failed

LORA = {"name": "ink", "path": "/loras/ink", "weight_name": None, "pinned": False}
Ask = Callable[[Omni], Any]


@pytest.mark.parametrize(
    ("ask", "command", "arguments"),
    [
        (lambda omni: omni.sleep(), "sleep", {"level": 1, "tags": None}),
        (lambda omni: omni.sleep(2, ["vae"]), "sleep", {"level": 2, "tags": ["vae"]}),
        (lambda omni: omni.wake(), "wake", {"tags": None}),
        (lambda omni: omni.wake(tags=("weights",)), "wake", {"tags": ["weights"]}),
        (lambda omni: omni.load_weights(), "load_weights", {"path": None}),
        (lambda omni: omni.load_weights("/other"), "load_weights", {"path": "/other"}),
        (lambda omni: omni.load_weights(Path("/other")), "load_weights", {"path": "/other"}),
        (lambda omni: omni.add_lora("ink", "/loras/ink"), "add_lora", LORA),
        (
            lambda omni: omni.add_lora("ink", "/loras", weight_name="a", pinned=True),
            "add_lora",
            {"name": "ink", "path": "/loras", "weight_name": "a", "pinned": True},
        ),
        (lambda omni: omni.loras(), "list_loras", {}),
    ],
)
def test_a_command_goes_to_all_stages_with_its_arguments(
    ask: Ask, command: str, arguments: dict[str, Any], commanded: Omni, obedient: ObedientStages
) -> None:
    answer = ask(commanded)
    assert obedient.told == [(name, command, arguments) for name in STAGES]
    assert list(answer) == list(STAGES)


@pytest.mark.parametrize(
    ("ask", "command"),
    [
        (lambda omni: omni.sleep(stages=["talker"]), "sleep"),
        (lambda omni: omni.wake(stages=["talker"]), "wake"),
        (lambda omni: omni.load_weights("/other", ["talker"]), "load_weights"),
        (lambda omni: omni.add_lora("ink", "/loras/ink", stages=["talker"]), "add_lora"),
    ],
)
def test_a_command_goes_to_the_stages_that_are_named(
    ask: Ask, command: str, commanded: Omni, obedient: ObedientStages
) -> None:
    assert list(ask(commanded)) == ["talker"]
    assert [told[:2] for told in obedient.told] == [("talker", command)]


def test_a_path_is_of_the_folder_that_the_program_is_in(
    commanded: Omni, obedient: ObedientStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commanded.load_weights("other", ["thinker"])
    commanded.add_lora("ink", Path("ink"), stages=["thinker"])
    told = [arguments["path"] for _, _, arguments in obedient.told]
    assert told == [str(tmp_path / "other"), str(tmp_path / "ink")]


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        (lambda omni: omni.sleep(stages=["thinker", "dit"]), "stages[1]"),
        (lambda omni: omni.load_weights("/other", ["dit"]), "stages[0]"),
        (lambda omni: omni.load_weights(WEIGHTS.items(), ["dit"]), "stages[0]"),
        (lambda omni: omni.remove_lora("ink", ["dit"]), "stages[0]"),
        (lambda omni: omni.sleep(stages="thinker"), "stages"),
        (lambda omni: omni.sleep(3), "level"),
        (lambda omni: omni.wake(["a/b"]), "tags[0]"),
        (lambda omni: omni.add_lora("../a", "/loras/a"), "name"),
        (lambda omni: omni.load_weights("/\udcff"), "path"),
    ],
)
def test_a_wrong_field_is_named_and_no_stage_is_told(
    ask: Ask, param: str, commanded: Omni, obedient: ObedientStages
) -> None:
    with pytest.raises(BadRequest) as raised:
        ask(commanded)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert not obedient.told


@pytest.mark.parametrize(
    ("ask", "command"),
    [
        (lambda omni: omni.sleep(), "sleep"),
        (lambda omni: omni.load_weights("/other"), "load_weights"),
        (lambda omni: omni.load_weights(unread()), "load_weights"),
        (lambda omni: omni.add_lora("ink", "/loras/ink"), "add_lora"),
    ],
)
def test_what_the_stages_cannot_is_refused_with_their_reason(
    ask: Ask, command: str, tmp_path: Path, model: Path
) -> None:
    refusing = ObedientStages(tmp_path, {command: "as it is configured"})
    with fake_omni(refusing, {**OMNI, "model": str(model)}) as omni:
        with pytest.raises(BadRequest) as raised:
            ask(omni)
        assert raised.value.code == "unsupported_command"
        assert raised.value.message == f"Stage thinker refuses {command}: as it is configured."
        assert not refusing.told
        assert omni.chat("words").text == "Hello there"


def test_what_a_stage_answers_is_raised(commanded: Omni, obedient: ObedientStages) -> None:
    failed = Failed(
        409, "a request uses it", "invalid_request_error", "thinker", code="lora_in_use"
    )
    obedient.graph.obey = lambda *_: CommandResult(error=failed)
    with pytest.raises(BadRequest, match="a request uses it") as raised:
        commanded.remove_lora("ink")
    assert (raised.value.status, raised.value.code) == (409, "lora_in_use")


def test_an_omni_that_is_closed_takes_no_command(commanded: Omni, obedient: ObedientStages) -> None:
    commanded.close()
    asking: list[Ask] = [Omni.sleep, Omni.wake, Omni.load_weights, Omni.loras]
    for ask in asking:
        with pytest.raises(Closed):
            ask(commanded)
    assert commanded.sleeping == {}
    assert not obedient.told


def test_a_graph_that_sleeps_answers_once_it_is_woken(commanded: Omni) -> None:
    awake = dict.fromkeys(STAGES, ())
    asleep = dict.fromkeys(STAGES, ("weights",))
    assert commanded.sleeping == awake
    assert commanded.sleep() == asleep
    assert commanded.sleeping == asleep
    with pytest.raises(Unavailable) as raised:
        commanded.chat("words")
    assert (raised.value.status, raised.value.code) == (503, "sleeping")
    assert commanded.wake() == commanded.sleeping == awake
    assert commanded.chat("words").text == "Hello there"


def test_one_stage_sleeps_and_the_others_answer(commanded: Omni) -> None:
    assert commanded.sleep(stages=["code2wav"]) == {"code2wav": ("weights",)}
    assert commanded.chat("words").text == "Hello there"
    with pytest.raises(Unavailable, match="code2wav is asleep"):
        commanded.chat("words", modalities=["text", "audio"])


def test_requests_in_flight_end_before_their_stage_sleeps(
    commanded: Omni, obedient: ObedientStages
) -> None:
    pieces = commanded.stream_chat("endless")
    next(pieces)
    with ThreadPoolExecutor() as pool:
        sleeping = pool.submit(commanded.sleep)
        wait_until(lambda: engine_of(commanded).runtime.fleet.stages["thinker"].record.is_closed)
        next(pieces)
        assert not obedient.told
        pieces.close()  # type: ignore[attr-defined]
        assert sleeping.result(600) == commanded.sleeping
    assert len(obedient.told) == len(STAGES)


def test_to_close_ends_a_command_that_waits_for_requests(commanded: Omni) -> None:
    pieces = commanded.stream_chat("endless")
    next(pieces)
    with ThreadPoolExecutor() as pool:
        sleeping = pool.submit(commanded.sleep)
        wait_until(lambda: engine_of(commanded).runtime.fleet.stages["thinker"].record.is_closed)
        commanded.close()
        assert isinstance(sleeping.exception(600), OmniError)
