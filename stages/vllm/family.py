"""Every text model that vLLM knows, as a family: what no other family knows is served by it.

Models of speech recognition and of embeddings are vLLM's, too.
"""

from collections.abc import Iterator, Mapping

from omnistage.stage_configs.checkpoint import CONFIG, Checkpoint
from omnistage.stage_configs.family import GRAPHS, Family, Picked, TinyModel
from omnistage.stage_configs.kinds import Kind, Offer, Payload, payloads

# Parts of a configuration that make a model speak, in the families that have a text model too.
SPEAKING = ("talker_config", "token2wav_config", "code2wav_config", "tts_config", "vocoder_config")
SENTENCE_MODULES = "modules.json"  # of a sentence-transformers folder: how it pools
TEXT_ONLY = "text only: its speech stages are not supported"
TRANSCRIBERS = frozenset({"qwen3_asr", "whisper"})  # model types that are served as transcribers
MEL_BINS = "num_mel_bins"  # Whisper's only word for audio
TINY = "omnistage.stages.checkpoint"


def pick(checkpoint: Checkpoint, num_gpus: int) -> Picked | None:
    """Whatever has a configuration; of a model that speaks the text alone."""
    if checkpoint.has(SENTENCE_MODULES):
        return Picked(GRAPHS / "vllm_embedding.yaml", is_last_resort=True)
    if not checkpoint.has(CONFIG):
        return None
    config = checkpoint.config
    if config.get("model_type") in TRANSCRIBERS:
        return Picked(GRAPHS / "vllm_transcriber.yaml")
    speaks = any(config.get(part) for part in (*SPEAKING, "enable_audio_output"))
    note = TEXT_ONLY if speaks else ""
    return Picked(GRAPHS / "vllm_text.yaml", note, is_last_resort=True)


def transcriber_offer(checkpoint: Checkpoint, engine: Mapping[str, object]) -> Offer | None:
    """Return the offer of a transcriber; raises ValueError for a model that takes no audio.

    A stage finds out at its start whether vLLM transcribes with the model.
    """
    if not checkpoint.has(CONFIG):
        return None
    if not any("audio" in key or key == MEL_BINS for key in _keys_of(checkpoint.config)):
        kind = checkpoint.config.get("model_type")
        raise ValueError(f"a model of type {kind!r} takes no audio: this stage transcribes")
    return Offer(frozenset({"transcript"}))


def _keys_of(config: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a configuration and of the parts in it."""
    for key, value in config.items():
        yield key
        if isinstance(value, Mapping):
            yield from _keys_of(value)


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
        "vllm.transcriber": Kind(
            "omnistage.stages.vllm.transcriber:TranscriberStage",
            frozenset({"transcript"}),
            samples=False,
            offer=transcriber_offer,
            is_parallel=True,
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
        "embedding": TinyModel(f"{TINY}.tiny_embedding:write_tiny_embedding"),
        "qwen3": TinyModel(f"{TINY}.tiny_text:write_tiny_text"),
        "qwen3-asr": TinyModel(f"{TINY}.tiny_asr:write_tiny_asr"),
    },
)
