"""The prompt of a warm-up, which the pipeline reads itself, as it does those of edits."""

from collections.abc import Mapping


def blank_prompt(model: str, call: Mapping[str, object]) -> dict[str, str]:
    """Return a prompt alone."""
    return {"prompt": "A warm-up."}
