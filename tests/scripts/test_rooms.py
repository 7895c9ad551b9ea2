"""The drawing of rooms leaves out arrows that follow from others; that of the docs is true."""

import re
from pathlib import Path

import pytest
from rooms import arrows, behind, draw, node, reduced, room_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("server/tasks/chat/schema", "server/tasks"),
        ("server/app", None),
        ("stages/vllm/bridge/gate", "stages/vllm"),
        ("stages/qwen3_omni/talker", "stages/families"),
        ("connectors/tcp/link", "connectors"),
        ("tests/test_rooms", None),
    ],
)
def test_a_module_is_in_the_room_of_its_folder(path: str, room: str | None) -> None:
    assert room_of(tuple(path.split("/"))) == room


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    of = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert reduced(of) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}


def test_the_gateway_s_arrows_go_one_way() -> None:
    of = arrows()
    assert "server/runtime" in of["server/media"]
    assert not any(room.startswith("server/") for room in of["stages/worker"])


def test_every_arrow_that_architecture_draws_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (drawing,) = re.findall(r"```mermaid\n(.*?)\n```", page, re.DOTALL)
    drawn = re.findall(r"^ +(\S+) --> (\S+)$", drawing, re.MULTILINE)
    of = arrows()
    there = {(node(room), node(other)) for room in of for other in behind(room, of)}
    assert len(drawn) >= 30
    assert set(drawn) <= there, "make graph prints the drawing of today"


def test_the_drawing_has_every_room() -> None:
    of = {"server/http": {"connectors"}, "connectors": set()}
    assert draw(of).splitlines()[1:] == [
        "    subgraph server",
        "        server.http[http]",
        "    end",
        "    subgraph stages",
        "    end",
        "    server.http --> connectors",
    ]
