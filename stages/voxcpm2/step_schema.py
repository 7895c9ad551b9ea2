"""The step schema of the talker: columns of its prompt's tokens, the patch that a step makes."""

from omnistage.stages.speech.columns import TEXT
from omnistage.stages.vllm.step.step_schema import Column, Export, StepSchema

AUDIO = "audio"  # the number of a patch of the request's reference audio
# What a request brings to the model: under AUDIO its patches' latents, float32 [n, patch, latent];
# under CONTINUES anything, if the speech goes on from them.
CONTINUES = "continues"
MAX_REFERENCE = 384  # patches of a reference sound: what the gateway takes, 60 s, and some
# The ids of the talker's vocabulary: a patch follows, the last one does, the last one was made.
GO_ON, STOP, END = range(3)
NUM_IDS = 3

SCHEMA = StepSchema((Column(TEXT), Column(AUDIO)), export=Export("codes", "frame"))
