"""Describes answers with images, for the API's description."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class Image(TypedDict):
    """An image as base64, or where it is for a while; `layer`: of one made in layers, from 0."""

    b64_json: NotRequired[str]
    url: NotRequired[str]
    layer: NotRequired[int]


class ImageUsage(TypedDict):
    """Tokens of text, and of images by their sizes."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens_details: dict[str, int]


class ImagesAnswer(TypedDict):
    """The images of one request."""

    created: int
    background: Literal["opaque", "transparent"]
    output_format: Literal["png", "jpeg", "webp"]
    quality: str
    size: str
    data: list[Image]
    usage: ImageUsage
