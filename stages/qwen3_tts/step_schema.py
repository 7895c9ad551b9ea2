"""The step schema of the talker: columns of the bridge to vLLM beside its tokens."""

from omnistage.stages.speech.columns import CODEC, POSITION, TEXT
from omnistage.stages.vllm.step.step_schema import Column, Export, StepSchema

FRAME = "frame"  # of a reference sound, all of its codes
NONE = -1  # in every column: there is none
VOICE = -2  # in the codec's: the voice that the request brought


def talker_schema(num_code_groups: int, takes_frames: bool) -> StepSchema:
    """Returns the schema of a text's id and a codec id; a Base model's tokens may be audio
    frames.
    """
    frame = (Column(FRAME, width=num_code_groups),) if takes_frames else ()
    columns = (Column(TEXT, fed_by="tokens"), Column(CODEC), Column(POSITION, counts=True), *frame)
    return StepSchema(columns, export=Export("codes", "frame", "int32"))
