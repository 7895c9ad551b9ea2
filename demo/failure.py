"""Describes a failure to a reader: one plain sentence, no traceback."""

import openai


class CannotSend(Exception):
    """Something that the page cannot send; its text says why."""


def plain(error: Exception, url: str) -> str:
    """A sentence for what the SDK raised."""
    if isinstance(error, openai.APITimeoutError):
        return f"The server at {url} took too long to answer."
    if isinstance(error, openai.APIConnectionError):
        return (
            f"The server at {url} does not answer. `omnistage serve MODEL` starts one; "
            "`omnistage demo --url URL` names another."
        )
    if isinstance(error, openai.AuthenticationError):
        return "The server wants an API key. Start this page with `--api-key KEY`."
    if isinstance(error, openai.APIError):
        return message_of(error)
    return str(error)


def message_of(error: openai.APIError) -> str:
    """The server's own sentence, without the SDK's head and without JSON."""
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"])
    return error.message


# What an answer may fail by; anything else is an error of this page.
FAILURES = (openai.OpenAIError, CannotSend)
