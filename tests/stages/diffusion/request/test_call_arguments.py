"""A request's fields and what comes from upstream, as the arguments of one call."""

from typing import Any

import pytest

from omnistage.stages.diffusion.request.arguments import call_arguments
from omnistage.stages.messages.arguments import ArgumentsToCome, RowsToCome


class Pipeline:
    """Takes a prompt, ids beside it and rows in place of it."""

    def __call__(
        self,
        prompt: str | None = None,
        negative_prompt: str | None = None,
        prior_token_ids: Any = None,
        prompt_embeds: Any = None,
        height: int | None = None,
        num_images_per_prompt: int = 1,
    ) -> None:
        """Make nothing."""


BODY = {"prompt": "a cat", "height": 64, "n": 2}


@pytest.mark.parametrize(
    ("to_come", "expected"),
    [
        (ArgumentsToCome(), {"prompt": "a cat", "height": 64}),
        (ArgumentsToCome(ids={"prior_token_ids": [1]}), {"prompt": "a cat", "height": 64}),
        (ArgumentsToCome(replaces=["prompt"]), {"height": 64}),
        (ArgumentsToCome(values={"height": 96}), {"prompt": "a cat"}),
        (ArgumentsToCome(rows={"prompt": RowsToCome(0, [1])}), {"height": 64}),
    ],
    ids=["nothing", "beside", "in place", "its own size", "the field itself"],
)
def test_fields_that_upstream_stands_for_are_no_arguments(
    to_come: ArgumentsToCome, expected: dict[str, Any]
) -> None:
    fields = {name: value for name, value in BODY.items() if name not in to_come.names}
    made = call_arguments(Pipeline(), fields, None)
    assert made == {**expected, "num_images_per_prompt": 2, "output_type": "np"}
