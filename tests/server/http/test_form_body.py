"""A form is read to its last boundary: one that is cut off is refused, wherever that is."""

from fastapi import Request
from starlette.types import Message

from omnistage.server.common.errors import ApiError
from omnistage.server.http.form_body import read_fields

HEAD = 'Content-Disposition: form-data; name="'
FILE = f'--B\r\n{HEAD}file"; filename="a.wav"\r\n\r\nsamples\r\n'
PROMPT = f'--B\r\n{HEAD}prompt"\r\n\r\nSay it.\r\n'
FORM = f"{FILE}{PROMPT}--B--".encode()
FIELDS = {"file": b"samples", "prompt": "Say it."}


def request(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", b"multipart/form-data; boundary=B")]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def refusal(body: bytes) -> ApiError | None:
    try:
        await read_fields(request(body))
    except ApiError as error:
        return error
    return None


async def test_a_form_is_whole_with_its_last_boundary_and_whatever_follows() -> None:
    for end in (b"", b"\r\n", b"\r\nan epilogue"):
        assert await read_fields(request(FORM + end)) == FIELDS


async def test_a_form_that_is_cut_off_anywhere_is_refused() -> None:
    for length in range(len(FORM)):
        error = await refusal(FORM[:length])
        assert error is not None, FORM[:length]
        assert error.status == 400
        assert str(error).startswith("The form cannot be read: ")
