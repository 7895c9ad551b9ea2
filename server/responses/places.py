"""Where in a client's body each place of the chat is that was made of it, for refusals."""

import re

# Fields of a chat, as a response calls them.
RENAMED = (
    (r"^tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^tool_choice\.allowed_tools\.tools\[(\d+)\]\.function", r"tool_choice.tools[\1]"),
    (r"^tool_choice\.allowed_tools", "tool_choice"),
    (r"^response_format\.json_schema", "text.format"),
    (r"^response_format", "text.format"),
    (r"^reasoning_effort", "reasoning.effort"),
    (r"^max_completion_tokens|^max_tokens", "max_output_tokens"),
    (r"^messages", "input"),
)


class Places:
    """The items of one request, by the messages that they became."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}
        self._whole: dict[str, str] = {}
        self._left_out: list[range] = []

    def leave_out(self, messages: range) -> None:
        """Count messages behind these from before these were left out of the chat."""
        self._left_out.append(messages)

    def put(self, chat_place: str, place: str) -> None:
        """Puts places below the one to places below the other under the same names."""
        self._own[chat_place] = place

    def put_whole(self, chat_place: str, place: str) -> None:
        """Puts places below the one to the whole other, which has no places of its own."""
        self._whole[chat_place] = place

    def own(self, chat_place: str) -> str:
        """A place of the chat as one of the body."""
        chat_place = re.sub(r"^messages\[(\d+)\]", self._before_left_out, chat_place)
        for end in _ends(chat_place):
            head, rest = chat_place[:end], chat_place[end:]
            if head in self._whole:
                return self._whole[head]
            if head in self._own:
                return self._own[head] + rest
        for pattern, name in RENAMED:
            renamed, count = re.subn(pattern, name, chat_place)
            if count:
                return renamed
        return chat_place

    def _before_left_out(self, message: re.Match[str]) -> str:
        number = int(message[1])
        for left_out in reversed(self._left_out):
            if number >= left_out.start:
                number += len(left_out)
        return f"messages[{number}]"


def _ends(place: str) -> list[int]:
    """Where the place and each place around it end, the innermost first."""
    ends = [found.start() for found in re.finditer(r"[.\[]", place)]
    return [len(place), *reversed(ends)]
