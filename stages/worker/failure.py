"""Failures of one request, as a stage reports them to the gateway."""

from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES, shortened
from omnistage.stages.messages.to_gateway import Failed


class RequestError(Exception):
    """One request's failure: an HTTP status and the fields of OpenAI's error envelope."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        self.message = shortened(message, MAX_MESSAGE_BYTES)
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def told_by(self, stage: str) -> Failed:
        """Returns the failure that a stage reports."""
        return Failed(self.status, self.message, self.type, stage, self.param, self.code)


def out_of_memory(stage: str) -> RequestError:
    """The failure of a request that found too little memory although it was computed alone."""
    message = (
        f"Stage {stage} ran out of memory with this request alone: "
        "ask for less at once, or again when the server has less to do."
    )
    return RequestError(507, message, code="out_of_memory")
