"""What processes say to each other arrives as it was said, and nothing else is understood."""

from typing import Any

import pytest

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.codec import decode, encode
from omnistage.connectors.messages import M, Message, Messages, UnknownMessage
from omnistage.stage_configs.work import WorkBound
from omnistage.stages.messages import addresses, edge, to_gateway, to_stage
from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome
from omnistage.stages.messages.body import (
    AnyBody,
    Chat,
    Detokenize,
    Draw,
    Embed,
    GivenMedium,
    GivenText,
    Prompt,
    Tokenize,
    VoiceSample,
)
from omnistage.stages.messages.families import MetricFamily

REQUEST = to_stage.Request(
    Chat({"messages": [{"role": "user", "content": "é"}], "seed": -1, "stop": None}),
    ["text", "audio"],
    ["thinker", "talker"],
    Draw({"size": "256x256", "n": 1}),
    speaker="ethan",
    stage_params={"talker": {"temperature": 0.5, "ignore_eos": True, "seed": 3}},
    seed=-4,
    return_codes=True,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
BOUND = WorkBound(1.5, 30.0, "max_megapixels", 1024, 512, 1, 50, keeps_size=True)
FAILED = to_gateway.Failed(400, "no", "invalid_request_error", "thinker", "x", "y")
VOICE = VoiceSample("key", "said")
BODIES: list[AnyBody] = [
    Chat({"messages": []}),
    Prompt({"prompt": "é"}),
    GivenText("One", "Whisper.", "english", VOICE, is_open=True),
    GivenText("One"),
    Tokenize({"prompt": "é"}),
    Detokenize([1, 2]),
    Embed(["a", [1, 2]], 4),
    Embed([[1]]),
    Draw({"prompt": "a cat", "size": None}),
    Draw({}, [GivenMedium("image", "image0"), GivenMedium("video", "video0", 16.0)]),
]
SAID: list[tuple[Messages[Any], Message]] = [
    (to_stage.TO_STAGE, REQUEST),
    *((to_stage.TO_STAGE, to_stage.Request(body, ["text"])) for body in BODIES),
    (to_stage.TO_STAGE, to_stage.MediumPiece("omnistage:a", "sound", {"rate_hz": 16_000})),
    (to_stage.TO_STAGE, to_stage.MoreText("and more")),
    (to_stage.TO_STAGE, to_stage.Cancel()),
    (to_stage.TO_STAGE, to_stage.Stop()),
    (to_stage.TO_STAGE, to_stage.Command("sleep", {"level": 1, "tags": ["weights"]})),
    (to_gateway.TO_GATEWAY, to_gateway.Ready(1.5, ["a"], 24_000, 128, {"sleep": "no"}, BOUND, 2)),
    (to_gateway.TO_GATEWAY, to_gateway.Status(1, 2, 3, 4, 5, 6, {"tasks": 1}, 7)),
    (to_gateway.TO_GATEWAY, to_gateway.Alive()),
    (to_gateway.TO_GATEWAY, to_gateway.Compiling()),
    (to_gateway.TO_GATEWAY, to_gateway.Metrics([MetricFamily("a", "# TYPE a gauge\n", "a 1.0\n")])),
    (to_gateway.TO_GATEWAY, to_gateway.CommandResult({"asleep": []})),
    (to_gateway.TO_GATEWAY, to_gateway.CommandResult(error=FAILED)),
    (to_gateway.TO_GATEWAY, FAILED),
    (to_gateway.TO_GATEWAY, to_gateway.TextDelta({"choices": [], "usage": {"prompt_tokens": 1}})),
    (to_gateway.TO_GATEWAY, to_gateway.TranscriptDelta({"choices": [{"delta": {}}]})),
    (to_gateway.TO_GATEWAY, to_gateway.Sound(3)),
    (to_gateway.TO_GATEWAY, to_gateway.ImagePixels("image", 2, True, 5)),
    (to_gateway.TO_GATEWAY, to_gateway.Step("video", 3, 20)),
    (to_gateway.TO_GATEWAY, to_gateway.Embedding(3, 12)),
    (to_gateway.TO_GATEWAY, to_gateway.Tokenized("text", [1, 2], ["a", "b"], "ab")),
    (to_gateway.TO_GATEWAY, to_gateway.InputTokens(7)),
    (
        to_gateway.TO_GATEWAY,
        to_gateway.Ready(speech=to_gateway.Speech(["english"], True, max_text=9)),
    ),
    (to_gateway.TO_GATEWAY, to_gateway.Queued()),
    (to_gateway.TO_GATEWAY, to_gateway.Marks({"first_token": 1 << 60})),
    (edge.EDGE, edge.Open(REQUEST.with_body(None))),
    (edge.EDGE, edge.Open(REQUEST.with_body(REQUEST.image))),
    (edge.EDGE, edge.NothingToSay()),
    (edge.EDGE, edge.Waits()),
    (edge.EDGE, edge.ReleasedWords("é\n")),
    (edge.EDGE, edge.StageTokens()),
    (edge.EDGE, edge.Rows("prompt_embeds", 1)),
    (edge.EDGE, edge.Ids("prior_token_ids")),
    (edge.EDGE, edge.KeysAndValues("contexts", 1)),
    (edge.EDGE, edge.RowsReleased(12)),
    (edge.EDGE, edge.Codes()),
]


def through(messages: Messages[M], message: Message) -> M:
    """As it comes out of a channel."""
    return decode(encode(Chunk("a", message)).header, memoryview(b""), messages).message


@pytest.mark.parametrize(("messages", "message"), SAID, ids=lambda one: type(one).__name__)
def test_a_message_arrives_as_it_was_said(messages: Messages[Any], message: Message) -> None:
    assert through(messages, message) == message


def test_every_message_is_tried() -> None:
    kinds = {type(message) for _, message in SAID} | {edge.Open}
    assert kinds == {
        kind for kind in all_below(Message) if kind.__module__.startswith("omnistage.stages")
    }


def all_below(kind: type[Message]) -> set[type[Message]]:
    below = set(kind.__subclasses__())
    return below.union(*(all_below(one) for one in below))


def test_what_an_edge_announces_is_read_by_who_knows_it() -> None:
    rows = {"prompt_embeds": RowsToCome(34, [5, 3], mask="prompt_embeds_mask")}
    about = ArgumentsToCome(rows, {"ids": [1, 9]}, {"height": 64, "is_on": True}, ["prompt"])
    opened = through(edge.EDGE, edge.Open(REQUEST, edge.described(about)))
    assert isinstance(opened, edge.Open)
    assert (opened.request, opened.read(ArgumentsToCome)) == (REQUEST, about)


@pytest.mark.parametrize(
    ("messages", "message", "named"),
    [
        (to_stage.TO_STAGE, to_gateway.Alive(), "'alive'"),
        (to_gateway.TO_GATEWAY, to_stage.Stop(), "'stop'"),
        (edge.EDGE, FAILED, "'failed'"),
    ],
)
def test_a_message_for_another_destination_is_an_error_that_names_it(
    messages: Messages[Any], message: Message, named: str
) -> None:
    with pytest.raises(UnknownMessage, match=f"request a, message {named}"):
        through(messages, message)


def test_a_stage_has_an_end_of_its_own_channels_only() -> None:
    ends = ("thinker", "talker")
    made = [
        addresses.requests_address("thinker"),
        addresses.outputs_address("thinker"),
        addresses.opens_address(*ends),
        addresses.feed_address(*ends),
        addresses.rows_address(*ends),
    ]
    assert len(set(made)) == len(made)
    assert [addresses.is_end_of("thinker", one) for one in made] == [True] * 5
    assert [addresses.is_end_of("talker", one) for one in made] == [False, False, True, True, True]
    assert not any(addresses.is_end_of("open", one) for one in made[:2])
    assert [addresses.ends_of(one) for one in made] == [
        ("gateway", "thinker", "requests"),
        ("thinker", "gateway", "outputs"),
        ("thinker", "talker", "open"),
        ("thinker", "talker", "feed"),
        ("thinker", "talker", "rows"),
    ]
