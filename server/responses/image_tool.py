"""The tool `image_generation`: what a response says of the image that answers it."""

from collections.abc import Set
from dataclasses import dataclass

from omnistage.server.common.errors import invalid, unsupported
from omnistage.server.common.fields import parse
from omnistage.server.media.medium import Medium
from omnistage.server.media.parts import checked_part
from omnistage.server.responses.places import Places
from omnistage.server.responses.schema import ResponseRequest, format_of
from omnistage.server.tasks.images.mixed import FIELDS as BESIDE_TEXT
from omnistage.server.tasks.images.schema import EditRequest
from omnistage.stage_configs.json_types import Json, JsonMap

KIND = "image_generation"
ACTIONS = ("auto", "generate", "edit")
# The tool's own, and those of OpenAI's whose meaning is its own service's.
OWN_FIELDS = frozenset({"type", "action", "input_image_mask", "model", "moderation"})
# An image request's, but for those that the response says, or that have no meaning here.
FIELDS = EditRequest.model_fields.keys() - {
    *("prompt", "model", "n", "seed", "stream", "stream_progress", "response_format")
}
# What has a meaning where nothing but images is made.
READ = frozenset(
    {"input", "model", "previous_response_id", "store", "metadata", "stream", "stream_options"}
    | {"tools", "tool_choice", "seed", "text"}
)


@dataclass(frozen=True, slots=True)
class ImageTool:
    """The fields of the tool, and its place in the body."""

    given: JsonMap
    place: str

    @classmethod
    def of(cls, asked: ResponseRequest, places: Places) -> "ImageTool | None":
        """Return the tool of a response, None without one; ApiError if it is given twice."""
        found = [
            cls(tool, f"tools[{number}]")
            for number, tool in enumerate(asked.tools or ())
            if tool.get("type") == KIND
        ]
        if len(found) > 1:
            raise invalid(found[1].place, f"is a second {KIND}; give one")
        for tool in found:
            for name in FIELDS:
                places.put(name, f"{tool.place}.{name}")
        return found[0] if found else None

    @property
    def fields(self) -> Json:
        """Returns the fields of an image request."""
        return {name: value for name, value in self.given.items() if name in FIELDS}

    @property
    def fields_beside_text(self) -> dict[str, object]:
        """Returns the fields of an image drawn from the answer's words; raises ApiError."""
        if self.given.get("action") == "edit":
            raise unsupported(f"{self.place}.action", f"{self.place}.action of a drawn answer")
        if self.given.get("input_image_mask") is not None:
            place = f"{self.place}.input_image_mask"
            raise unsupported(place, f"{place} of a drawn answer")
        return {name: value for name, value in self.fields.items() if name in BESIDE_TEXT}

    def unknown(self, known: Set[str] = FIELDS) -> list[str]:
        """Return the fields without effect, by their places; `known`: an image request's here."""
        names = self.given.keys() - OWN_FIELDS - EditRequest.ignored - known
        return [f"{self.place}.{name}" for name in sorted(names)]

    def images(self, media: list[Medium]) -> list[Medium]:
        """Return the images to edit, of those in the user's last message; raises ApiError."""
        action = self.given.get("action") or "auto"
        if action not in ACTIONS:
            raise invalid(f"{self.place}.action", f"must be one of {', '.join(ACTIONS)}")
        if action == "edit" and not media:
            raise invalid(f"{self.place}.action", "needs an input_image in the last message")
        return [] if action == "generate" else media

    def mask(self) -> Medium | None:
        """Return the mask of an edit; raises ApiError."""
        given, place = self.given.get("input_image_mask"), f"{self.place}.input_image_mask"
        if given is None:
            return None
        if not isinstance(given, dict):
            raise invalid(place, "must be an object with image_url")
        if given.get("file_id") is not None:
            raise unsupported(f"{place}.file_id")
        part = {"type": "image_url", "image_url": given.get("image_url")}
        return Medium.of_part(checked_part(part, place), place)


def image_request(
    asked: ResponseRequest, tool: ImageTool | None, prompt: str, places: Places
) -> EditRequest:
    """Return the request for the image of a response; its refusals are `places`' to mend."""
    places.put("prompt", "input")
    fields = tool.fields if tool is not None else {}
    if not asked.stream:
        fields.pop("partial_images", None)
    more = {"prompt": prompt, "seed": asked.seed, "stream": asked.stream}
    return parse(EditRequest, {**fields, **more})


def check_only_images(asked: ResponseRequest) -> None:
    """Raise ApiError for what only a model that makes text can do."""
    asked.check()
    for number, tool in enumerate(asked.tools or ()):
        if tool.get("type") != KIND:
            raise invalid(f"tools[{number}].type", f"must be {KIND}: this model makes no text")
    if asked.tool_choice not in (None, "auto", "required", {"type": KIND}):
        raise invalid("tool_choice", f"must be auto, required or {KIND}: this model makes no text")
    if format_of(asked).get("type") != "text":
        raise invalid("text.format.type", "must be text: this model makes no text")


def unknown_alone(asked: ResponseRequest, tool: ImageTool | None) -> list[str]:
    """Return the fields without effect where nothing but images is made."""
    given = {name for name in asked.model_fields_set if getattr(asked, name, None) is not None}
    known = READ | ResponseRequest.ignored
    return sorted(given - known) + (tool.unknown() if tool is not None else [])


def tool_beside_text(asked: ResponseRequest, tool: ImageTool | None) -> ImageTool | None:
    """Return the tool if a model that draws what it writes is to draw for this response."""
    is_chosen = asked.tool_choice in (None, "auto", "required", {"type": KIND})
    return tool if is_chosen else None
