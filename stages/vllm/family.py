"""Every text model that vLLM knows, as a family: what no other family knows is served by it."""

from omnistage.stage_configs.checkpoint import CONFIG, Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import Kind, Payload, payloads

# Parts of a configuration that make a model speak, in the families that have a text model too.
SPEAKING = ("talker_config", "token2wav_config", "code2wav_config", "tts_config", "vocoder_config")
SENTENCE_MODULES = "modules.json"  # of a sentence-transformers folder: how it pools
TEXT_ONLY = "text only: its speech stages are not supported"


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Whatever has a configuration; of a model that speaks the text alone."""
    if checkpoint.has(SENTENCE_MODULES):
        return Picked(GRAPHS / "vllm_embedding.yaml", is_last_resort=True)
    if not checkpoint.has(CONFIG):
        return None
    config = checkpoint.config
    speaks = any(config.get(part) for part in (*SPEAKING, "enable_audio_output"))
    note = TEXT_ONLY if speaks else ""
    return Picked(GRAPHS / "vllm_text.yaml", note, is_last_resort=True)


FAMILY = Family(
    name="vllm",
    kinds={
        "vllm.text": Kind(
            "omnistage.stages.vllm.text:TextStage",
            frozenset({"text"}),
            is_parallel=True,
            is_pipeline=True,
            makes=payloads(Payload.TEXT, Payload.ROWS),
            needs=("vllm",),
        ),
        "vllm.embedding": Kind(
            "omnistage.stages.vllm.embedding:EmbeddingStage",
            frozenset({"embedding"}),
            samples=False,
            is_parallel=True,
            needs=("vllm",),
        ),
    },
    pick=pick,
    tiny={
        "embedding": TinyModel("omnistage.stages.checkpoint.tiny_embedding:write_tiny_embedding")
    },
)
