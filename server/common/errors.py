"""Every failure a client can see, in OpenAI's error envelope."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from omnistage.stage_configs.json_types import Json
from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES, MAX_PARAM_BYTES, shortened
from omnistage.stages.messages.to_gateway import Failed

CLIENT_CLOSED_REQUEST = 499


class ApiError(Exception):
    """A refusal or failure with its HTTP status and the envelope's fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = shortened(message, MAX_MESSAGE_BYTES)
        super().__init__(self.message)
        self.status = status
        # Clients classify a failure of ours by its type.
        self.type = type or ("server_error" if status >= 500 else "invalid_request_error")
        self.param = None if param is None else shortened(param, MAX_PARAM_BYTES)
        self.code = code
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    @classmethod
    def from_stage(cls, failed: Failed) -> "ApiError":
        """Makes the error of a stage's report."""
        message = failed.message
        if failed.status >= 500 and failed.stage not in message:
            message = f"Stage {failed.stage} failed: {message}"
        return cls(failed.status, message, param=failed.param, code=failed.code)

    def named(self, name_of: Callable[[str], str]) -> "ApiError":
        """Return the same error, its field called as `name_of` calls it, also in the message."""
        if self.param is None:
            return self
        param = name_of(self.param)
        message = self.message
        if message.startswith(self.param):
            message = param + message.removeprefix(self.param)
        return ApiError(
            self.status,
            message,
            type=self.type,
            param=param,
            code=self.code,
            headers=self.headers,
        )

    @property
    def envelope(self) -> Json:
        """The body: all four keys, always."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


@contextmanager
def fields_named(name_of: Callable[[str], str]) -> Iterator[None]:
    """Name fields in errors as the client does: inside, the request is of another kind."""
    try:
        yield
    except ApiError as error:
        raise error.named(name_of) from error


def internal_error() -> ApiError:
    """Returns what a client may know about a failure that nobody foresaw."""
    return ApiError(500, "The server had an error while processing the request.")


def invalid(param: str, problem: str) -> ApiError:
    """A 400 that blames one field."""
    named = shortened(param, MAX_PARAM_BYTES)  # so that the problem is still named
    return ApiError(400, f"{named} {problem}.", param=param, code="invalid_value")


def unsupported(param: str, asked: str | None = None) -> ApiError:
    """A 400 for a known field that asks for what is not done; `asked` says what."""
    message = f"{shortened(asked or param, MAX_PARAM_BYTES)} is not supported."
    return ApiError(400, message, param=param, code="unsupported_parameter")


def field_path(location: Sequence[int | str]) -> str:
    """A place in a JSON body, such as `messages[0].content`."""
    path = ""
    for part in location:
        if part == "[key]":  # pydantic's mark for a mapping's key
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path
