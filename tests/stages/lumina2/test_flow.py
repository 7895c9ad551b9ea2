"""What the stage of pipelines reads of a pipeline's own code."""

from pathlib import Path

import pytest

from omnistage.stages.diffusion.request.sides import side_multiple
from omnistage.stages.mammothmoda2.pipeline import MammothModa2Pipeline
from omnistage.stages.omnigen2.pipeline import OmniGen2Pipeline


@pytest.mark.parametrize(
    ("made", "folder"),
    [(OmniGen2Pipeline, "tiny_omnigen2"), (MammothModa2Pipeline, "tiny_mammothmoda2")],
    ids=["OmniGen2", "MammothModa2"],
)
def test_the_multiple_of_sides_is_known_before_a_pipeline_is_called(
    made: type, folder: str, request: pytest.FixtureRequest
) -> None:
    model: Path = request.getfixturevalue(folder)
    assert side_multiple(made.from_pretrained(model)) == 16  # type: ignore[attr-defined]
