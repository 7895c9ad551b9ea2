"""The step schema of the stage of image ids."""

from omnistage.stages.vllm.step.step_schema import Column, Export, StepSchema

# A token's position where nothing but the image's own beginning is read; negative before that.
UNGUIDED = "unguided"
FOLLOWER = "follower"  # the id that must follow, as one of:
ANY, LINE_END, IMAGE_END = range(3)

SCHEMA = StepSchema(
    (Column(UNGUIDED, counts=True), Column(FOLLOWER, blank=ANY, fed_by=FOLLOWER)),
    export=Export("hidden", "row"),
)
