"""The talker stage on a real engine, against transformers: the same codes however rows come."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import torch
from support.oracles.spoken_rows import Spoken, SpokenReference, picture_and_sound, words
from support.stages.qwen2_5_talker import (
    ENDS,
    ENGINE,
    GREEDY,
    NUM_CODES,
    SPEAKER,
    Harness,
    rows_chunk,
)
from support.waiting import until

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stage_configs.kinds import Payload, payloads
from omnistage.stages.messages.edge import (
    EDGE,
    Edge,
    NothingToSay,
    Open,
)
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream, StagePorts

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
# Prompt lengths of text and seeds: the first and the third end by themselves.
TEXTS = ((20, 3), (9, 5), (33, 7))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def talker(
    tiny_qwen2_5_omni: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[Harness]:
    from omnistage.stages.qwen2_5_omni.talker import Talker

    limited = make_connector("shm", run_directory, {})
    unlimited = make_connector("shm", run_directory, {"credit": 0})
    addresses = {end: f"q25.{end}" for end in ENDS}
    for address in addresses.values():
        limited.create(address)
    port = {end: Port(address, "shm", str(run_directory), {}) for end, address in addresses.items()}
    senders = {end: unlimited.sender(addresses[end]) for end in ENDS if end != "codes"}
    edge = Downstream(
        "token2wav",
        payloads(Payload.CODES),
        senders["open"],
        senders["feed"],
        port["codes"],
        [12, 36],
    )
    ledger = run_directory / "q25.held"
    ports = StagePorts(
        "talker",
        str(tiny_qwen2_5_omni),
        ENGINE,
        {"prefill_part": 8},
        senders["outputs"],
        downstream=[edge],
        feeds=[port["released"], port["rows"]],
        source="thinker",
        ledger=str(ledger),
    )
    stage = Talker(ports)
    receivers = {end: limited.receiver(addresses[end], EDGE) for end in ("codes", "open")}
    ready = await stage.start()
    assert ready.speakers == ["chelsie", "ethan"]
    yield Harness(stage, senders | receivers, Ledger(ledger))
    await stage.close()
    ends: list[Sender | Receiver[Edge]] = [*senders.values(), *receivers.values()]
    for one in ends:
        one.close()
    for address in addresses.values():
        limited.destroy(address)


@pytest.fixture(scope="module")
def reference(tiny_qwen2_5_omni: Path) -> SpokenReference:
    return SpokenReference(str(tiny_qwen2_5_omni))


@pytest.fixture(scope="module")
def answers(reference: SpokenReference) -> dict[str, Spoken]:
    """Of texts and of a picture with a sound; their speech ends by itself or at its limit."""
    asked = {f"text-{length}": words(length, seed) for length, seed in TEXTS}
    asked["media"] = picture_and_sound(reference.config)
    found = {name: reference.answer(one, 12, NUM_CODES, SPEAKER) for name, one in asked.items()}
    lengths = [len(spoken.codes) for spoken in found.values()]
    assert min(lengths) < NUM_CODES == max(lengths)
    return found


CASES = [*(f"text-{length}" for length, _ in TEXTS), "media"]


@pytest.mark.parametrize("case", CASES)
async def test_all_codes_equal_the_reference_from_rows_that_came_whole(
    case: str, talker: Harness, answers: dict[str, Spoken]
) -> None:
    spoken, name = answers[case], f"whole-{case}"
    assert await talker.speak(name, spoken, talker.send_whole(name, spoken)) == spoken.codes


@pytest.mark.parametrize("lag_s", [0.0, 0.02], ids=["as they come", "late"])
@pytest.mark.parametrize("case", CASES)
async def test_all_codes_equal_the_reference_from_rows_one_by_one(
    case: str, lag_s: float, talker: Harness, answers: dict[str, Spoken]
) -> None:
    spoken, name = answers[case], f"one-by-one-{lag_s}-{case}"
    sending = talker.send_one_by_one(name, spoken, lag_s)
    assert await talker.speak(name, spoken, sending) == spoken.codes


async def test_all_codes_equal_the_reference_from_rows_that_came_again_and_were_released_late(
    talker: Harness, answers: dict[str, Spoken]
) -> None:
    spoken = answers["media"]
    assert await talker.speak("again", spoken, talker.send_again("again", spoken)) == spoken.codes


@pytest.mark.parametrize("case", CASES)
async def test_logits_of_every_step_equal_the_reference(
    case: str, talker: Harness, answers: dict[str, Spoken], reference: SpokenReference
) -> None:
    """By their logarithms of probabilities over what may be sampled, before any penalty."""
    spoken, name = answers[case], f"logits-{case}"
    stage = talker.stage
    prompt = await stage.prompt_of(talker.opened(name, spoken), SPEAKER.lower())
    params = stage._sampling(GREEDY, None)
    params.logprobs = -1
    params.extra_args = msgspec.structs.replace(prompt.options, to=[]).extra_args()
    await talker.send_whole(name, spoken)
    found: list[dict[int, Any]] = []
    ids = {"prompt_token_ids": list(prompt.ids)}
    async for output in stage._engine.generate(ids, params, name):
        found += output.outputs[0].logprobs
    config = reference.config
    allowed = torch.arange(config.talker_config.vocab_size)
    allowed = allowed[allowed <= config.token2wav_config.dit_config.num_embeds]
    kept = torch.tensor([*allowed.tolist(), *reference.ends])
    expected = spoken.logits[:, kept].log_softmax(-1)
    values = torch.tensor([[step[token].logprob for token in kept.tolist()] for step in found])
    assert len(values) >= len(spoken.codes)
    torch.testing.assert_close(values[: len(expected)], expected, atol=1e-4, rtol=0)


async def test_each_request_has_its_own_codes_beside_the_others(
    talker: Harness, answers: dict[str, Spoken]
) -> None:
    """More than there are seats, their rows at different times and some of them one by one."""
    asked = {f"beside-{number}": answers[CASES[number % len(CASES)]] for number in range(8)}
    serving = []
    for number, (name, spoken) in enumerate(asked.items()):
        send = talker.send_one_by_one if number % 3 else talker.send_whole
        serving.append(talker.speak(name, spoken, send(name, spoken)))
    for spoken, codes in zip(asked.values(), await asyncio.gather(*serving), strict=True):
        assert codes == spoken.codes


async def test_a_cancel_in_the_middle_leaves_nothing(
    talker: Harness, answers: dict[str, Spoken]
) -> None:
    """While the prompt is read in parts, while a row is waited for, and in the queue."""
    spoken = answers["media"]
    serving = []
    for number in range(6):
        name = f"cancelled-{number}"
        serving.append(asyncio.create_task(talker.stage.serve(talker.opened(name, spoken))))
        num_rows = spoken.num_prompt + number if number % 2 else spoken.num_prompt - 10
        talker.rows.send(rows_chunk(name, spoken, range(num_rows)))
        talker.release(name, spoken.num_prompt + 1)
    await until(lambda: {"rows", "late_rows", "late_inputs"} <= talker.held().keys())
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    codes = await talker.speak("after", spoken, talker.send_whole("after", spoken))
    assert codes == spoken.codes
    await until(lambda: not talker.held())


async def test_an_answer_without_rows_is_not_spoken(
    talker: Harness, answers: dict[str, Spoken]
) -> None:
    """The thinker's one token was the end; who decodes is told so."""
    while talker.opens.receive() is not None:
        pass
    spoken = answers["text-9"]
    serving = asyncio.create_task(talker.stage.serve(talker.opened("silent", spoken)))
    talker.rows.send(rows_chunk("silent", spoken, range(spoken.num_prompt)))
    await until(lambda: "silent" in talker.stage._silent)
    talker.stage.nothing_to_say("silent", "thinker")
    await asyncio.wait_for(serving, 600)
    told = [talker.opens.receive(), talker.opens.receive()]
    assert [type(chunk.message) for chunk in told if chunk] == [Open, NothingToSay]
    await until(lambda: not talker.held())


async def test_a_voice_that_the_checkpoint_has_not_is_refused(
    talker: Harness, answers: dict[str, Spoken]
) -> None:
    opened = talker.opened("stranger", answers["text-9"], speaker="nobody")
    with pytest.raises(RequestError, match="'nobody'; allowed: chelsie, ethan"):
        await talker.stage.serve(opened)


async def test_the_other_voice_has_codes_of_its_own(
    talker: Harness, reference: SpokenReference
) -> None:
    """Nobody named is the first of them."""
    spoken = reference.answer(words(9, 5), 12, NUM_CODES, "Chelsie")
    opened = talker.opened("other", spoken, speaker=None)
    await asyncio.gather(talker.stage.serve(opened), talker.send_whole("other", spoken))
    assert await talker.codes("other") == spoken.codes
