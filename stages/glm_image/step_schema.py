"""The step schema of the autoregressive half: each token's three positions."""

from omnistage.stages.vllm.step.step_schema import Column, StepSchema

POSITION = "position"  # of the image or text, and of its row and column

PRIOR_SCHEMA = StepSchema((Column(POSITION, width=3, blank=0, fed_by=POSITION),))
