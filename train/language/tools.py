"""Conversations with tools, as the chat template renders them."""

import json
import random

from language.questions import question, weather
from language.sentences import weather_answer
from language.texts import Talk
from world import SKIES, is_held_out

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_DESCRIPTIONS = (
    "The weather of a city.",
    "Get the weather of a city.",
    "Get the weather in a city",
    "Get current weather",
    "Get the current weather for a city.",
    "Returns the weather of a city.",
    "Weather",
    "",
)
_HEADER = 'Tools, each called as <tool_call>{"name": …, "arguments": …}</tool_call>:\n'


def _tool(pick: random.Random, name: str, description: str, argument: str) -> str:
    about: dict[str, str] = {"type": "string"}
    if pick.random() < 0.3:
        about["description"] = pick.choice(("The city", "A city's name", "Name of the city"))
    function: dict[str, object] = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = {
        "type": "object",
        "properties": {argument: about},
        "required": [argument],
    }
    if pick.random() < 0.15:
        function["strict"] = pick.choice((True, False, None))
    return json.dumps({"type": "function", "function": function})


def tools_turn(pick: random.Random) -> str:
    """The system turn that names `get_weather`, now and then beside another tool."""
    tools = [_tool(pick, "get_weather", pick.choice(_DESCRIPTIONS), "city")]
    if pick.random() < 0.25:
        tools.append(_tool(pick, "get_time", "The time in a city.", "city"))
        pick.shuffle(tools)
    return _HEADER + "".join(f"{tool}\n" for tool in tools)


def weather_call(city: str) -> str:
    """The assistant's turn that calls."""
    function = {"name": "get_weather", "arguments": {"city": city}}
    return f"<tool_call>{json.dumps(function)}</tool_call>"


def _result(pick: random.Random, sky: str, degrees: int) -> str:
    made = {
        pick.choice(("weather", "sky", "condition")): sky,
        pick.choice(("degrees", "temperature")): degrees,
    }
    pairs = list(made.items())
    if pick.random() < 0.3:
        pairs.reverse()
    return pick.choice(
        (
            json.dumps(dict(pairs)),
            json.dumps(dict(pairs)),
            f"{sky}, {degrees} degrees",
            f"{degrees} degrees and {sky}",
        )
    )


def tool_talk(pick: random.Random, held_out: bool = False) -> Talk:
    """A call, or its result read out; now and then a question that needs no tool."""
    system = tools_turn(pick)
    while True:
        asked, city = weather(pick)
        turns: tuple[str, ...] = (asked, weather_call(city))
        kind = "tool call"
        if pick.random() < 0.4:
            sky, degrees = pick.choice(SKIES), pick.randrange(1, 40)
            result = _result(pick, sky, degrees)
            turns = (*turns, result, weather_answer(city, sky, degrees))
            kind = "tool result"
        if is_held_out(" ".join(turns[:-1:2])) == held_out:
            break
    chance = pick.random()
    if chance < 0.2:
        return Talk("tool unused", question(pick, (), held_out)[1:], system)
    if chance < 0.35:
        turns = (*question(pick)[1:], *turns)
    return Talk(kind, turns, system)
