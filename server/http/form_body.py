"""Reads a body that is a form with files, or the same fields as JSON.

OpenAI's clients write lists as `name[]`, once for each item, and objects as `name[key]`.
"""

import re
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing, asynccontextmanager
from email.message import Message
from typing import Any

import msgspec
from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.http.request import CHARSETS, JsonRequest
from omnistage.stage_configs.json_types import Json

NAME = re.compile(r"(?P<name>[^\[\]]+)(?P<is_list>\[\])?(\[(?P<key>[^\[\]]+)\])?")
MAX_FILES, MAX_FIELDS = 64, 256
# The field `extra` as OpenAI's clients write it: its arguments are numbers, texts, booleans, lists.
EXTRA = re.compile(r"extra\[(?P<name>[^\[\]]+)\](?P<is_list>\[\])?")
NO_FILE = 'must be a file: a part of the form with a filename="…"'
Fields = Json


async def read_fields(request: Request, files: Collection[str] = ()) -> Fields:
    """Read the fields by name: strings, files as bytes, lists, objects; of JSON what it has.

    Raises ApiError, also for a field in `files` that is none.
    """
    header = Message()
    header["content-type"] = request.headers.get("content-type", "nothing")
    kind = header.get_content_type()
    if kind == "application/json":
        parsed: Fields = await JsonRequest(request.scope, request.receive).json()
        return parsed
    if kind != "multipart/form-data" or not header.get_boundary():
        message = "The Content-Type must be multipart/form-data with a boundary, or JSON."
        raise ApiError(415, message, code="unsupported_media_type")
    async with opened_form(request, max_files=MAX_FILES, max_fields=MAX_FIELDS) as form:
        return await _fields(form, files)


@asynccontextmanager
async def opened_form(request: Request, **limits: int) -> AsyncGenerator[FormData, None]:
    """A request's form, within starlette's `limits`; ApiError for a broken one."""
    _check_charset(request)
    parser = _WholeForm(request, **limits)
    try:
        async with aclosing(parser.stream):
            form = await parser.parse()
    except MultiPartException as error:
        message = f"The form cannot be read: {error.message}"
        raise ApiError(400, message, code="invalid_value") from error
    try:
        yield form
    finally:
        await form.close()


class _WholeForm(MultiPartParser):
    """Refuses a form that is cut off: starlette leaves out the field that it ends in."""

    def __init__(self, request: Request, **limits: int) -> None:
        super().__init__(request.headers, self._to_its_end(request), **limits)
        self._is_whole = False

    def on_end(self) -> None:
        self._is_whole = True

    async def _to_its_end(self, request: Request) -> AsyncGenerator[bytes, None]:
        async with aclosing(request.stream()) as stream:
            async for chunk in stream:
                yield chunk
        if not self._is_whole:
            raise MultiPartException("It ends before its last boundary.")


def _check_charset(request: Request) -> None:
    """Raise ApiError for a form of another charset, read from the header as starlette reads it.

    Starlette would decode with any of Python's codecs: some take minutes for a megabyte, fail with
    errors of their own, or make half a surrogate pair.
    """
    _, options = parse_options_header(request.headers["content-type"])
    charset = options.get(b"charset", b"utf-8").decode("latin-1").lower()
    if charset not in CHARSETS:
        message = "The Content-Type of a form must have no charset but utf-8."
        raise ApiError(415, message, code="unsupported_media_type")


def given_items(form: FormData) -> Iterator[tuple[str, str | UploadFile]]:
    """Yield the fields that say something: browsers and SDKs send the others empty."""
    for name, value in form.multi_items():
        if (value.filename or value.size) if isinstance(value, UploadFile) else value:
            yield name, value


def typed(text: str) -> Any:
    """Read a field of a form that is no text as JSON has it, or Python's True and False.

    The text itself comes back, if it is neither: whoever checks the field says what is wrong.
    """
    if text in ("True", "False"):
        return text == "True"
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def take_extra(fields: Fields, written: str, value: str | UploadFile) -> bool:
    """Put an argument in `extra` among the fields, as JSON has it; False for any other field.

    Raises ApiError for one that is there twice.
    """
    found = EXTRA.fullmatch(written)
    if found is None or not isinstance(value, str):
        return False
    place, name = fields.setdefault("extra", {}), found["name"]
    if not isinstance(place, dict) or (name in place and not found["is_list"]):
        raise invalid("extra", "is there twice")
    if found["is_list"]:
        items = place.setdefault(name, [])
        if not isinstance(items, list):
            raise invalid(f"extra.{name}", "is there twice")
        items.append(typed(value))
    else:
        place[name] = typed(value)
    return True


async def _fields(form: FormData, files: Collection[str]) -> Fields:
    fields: Fields = {}
    for written, value in given_items(form):
        if take_extra(fields, written, value):
            continue
        found = NAME.fullmatch(written)
        if found is None:
            raise invalid(written[:80], "is no name of a field")
        name, key = found["name"], found["key"]
        if name in files and isinstance(value, str):
            raise invalid(name, NO_FILE)
        read = await _value(value, name)
        if found["is_list"]:
            place, key = fields.setdefault(name, []), None
            if isinstance(place, list):
                place.append(read)
                continue
        elif key is not None:
            place = fields.setdefault(name, {})
            if isinstance(place, dict) and key not in place:
                place[key] = read
                continue
        elif name not in fields:
            fields[name] = read
            continue
        raise invalid(name, "is there twice")
    return fields


async def _value(value: str | UploadFile, name: str) -> str | bytes:
    if isinstance(value, UploadFile):
        return await value.read()
    if "\0" in value:
        raise invalid(name, "has a NUL character in it")
    return value
