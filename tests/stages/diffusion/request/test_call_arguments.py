"""A request's fields and what comes from upstream, as the arguments of one call."""

from typing import Any

import pytest

from omnistage.stages.diffusion.request.arguments import call_arguments


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
    ("given", "replaced", "expected"),
    [
        ({}, (), {"prompt": "a cat", "height": 64}),
        ({"prior_token_ids": 1}, (), {"prompt": "a cat", "height": 64, "prior_token_ids": 1}),
        ({"prompt_embeds": 1}, ("prompt",), {"height": 64, "prompt_embeds": 1}),
        ({"height": 96}, (), {"prompt": "a cat", "height": 96}),
    ],
    ids=["none", "beside", "in place", "wins"],
)
def test_what_upstream_gives_is_beside_the_fields_or_in_their_place(
    given: dict[str, Any], replaced: tuple[str, ...], expected: dict[str, Any]
) -> None:
    fields = {name: value for name, value in BODY.items() if name not in replaced}
    made = call_arguments(Pipeline(), fields, given, None)
    assert made == {**expected, "num_images_per_prompt": 2, "output_type": "np"}
