"""The kinds of stages: where each one's class is, and what it makes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """`path`: module:Class. `engine_takes_feed`: its engine, not its process, reads the edge.

    `samples`: whether a request can set its sampling by `stage_params`. As a graph's entry,
    `reads_out`: it has a given text spoken as it is; `hears`: its chats take sound. `is_parallel`:
    its engine is vLLM's, which several GPUs may share by its parallel sizes; others use one GPU.
    """

    path: str
    outputs: frozenset[str]
    engine_takes_feed: bool = False
    samples: bool = True
    reads_out: bool = False
    hears: bool = False
    is_parallel: bool = False


KINDS = {
    "qwen3_omni.thinker": Kind(
        "omnistage.stages.qwen3_omni.thinker:Thinker",
        frozenset({"text"}),
        reads_out=True,
        hears=True,
        is_parallel=True,
    ),
    "qwen3_omni.talker": Kind(
        "omnistage.stages.qwen3_omni.talker:Talker",
        frozenset(),
        engine_takes_feed=True,
        is_parallel=True,
    ),
    "qwen3_omni.code2wav": Kind(
        "omnistage.stages.qwen3_omni.code2wav_stage:Code2WavStage",
        frozenset({"audio"}),
        samples=False,
    ),
    "diffusers": Kind(
        "omnistage.stages.diffusion.stage:DiffusionStage",
        frozenset({"image", "video"}),
        samples=False,
    ),
    "qwen_image.text_encoder": Kind(
        "omnistage.stages.qwen_image.text_encoder:TextEncoder",
        frozenset(),
        samples=False,
        is_parallel=True,
    ),
    "vllm.text": Kind(
        "omnistage.stages.vllm.text:TextStage", frozenset({"text"}), is_parallel=True
    ),
    "vllm.embedding": Kind(
        "omnistage.stages.vllm.embedding:EmbeddingStage",
        frozenset({"embedding"}),
        samples=False,
        is_parallel=True,
    ),
}
