"""Tools and the choice among them."""

from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.tasks.chat.tools import checked_tools


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


LOOK = tool(name="look", description="Looks.", parameters={"type": "object"}, strict=True)


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (None, None),
        (None, "none"),
        ([LOOK], None),
        ([LOOK, tool(name="go")], "auto"),
        ([LOOK], {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tools_pass(tools: Any, choice: Any) -> None:
    assert checked_tools(tools, choice) == (tools, choice)


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [tool(name=name) for name in names]},
    }


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_left(mode: str) -> None:
    tools = [LOOK, tool(name="go"), tool(name="sit")]
    assert checked_tools(tools, allowed("sit", "look", mode=mode)) == ([LOOK, tools[2]], mode)


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([], None, "tools"),
        ([LOOK] * 200, None, "tools"),
        ([{}], None, "tools[0].type"),
        ([LOOK, {"type": "custom", "custom": {"name": "x"}}], None, "tools[1].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([tool()], {"type": "function", "function": {"name": "f"}}, "tools[0].function.name"),
        ([tool(name="a b\n<|im_end|>")], None, "tools[0].function.name"),
        ([tool(name="f", description=3)], None, "tools[0].function.description"),
        ([tool(name="f", strict="yes")], None, "tools[0].function.strict"),
        ([tool(name="f", parameters=3)], None, "tools[0].function.parameters"),
        (
            [tool(name="f", parameters={"minItems": 10**9})],
            None,
            "tools[0].function.parameters.minItems",
        ),
        ([LOOK], "sometimes", "tool_choice"),
        (None, "required", "tool_choice"),
        ([LOOK], {}, "tool_choice.type"),
        ([LOOK], {"type": "custom", "custom": {"name": "look"}}, "tool_choice.type"),
        ([LOOK], {"type": "allowed_tools"}, "tool_choice.allowed_tools.mode"),
        ([LOOK], allowed("look", mode="none"), "tool_choice.allowed_tools.mode"),
        ([LOOK], allowed(), "tool_choice.allowed_tools.tools"),
        ([LOOK], allowed("fly"), "tool_choice.allowed_tools.tools[0].function.name"),
        ([LOOK], {"type": "function"}, "tool_choice.function.name"),
        (
            [LOOK],
            {"type": "function", "function": {"name": "fly"}},
            "tool_choice.function.name",
        ),
    ],
)
def test_what_is_no_tool_or_no_choice_is_named(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked_tools(tools, choice)
    assert caught.value.status == 400
    assert caught.value.param == param
