"""The `vllm.general_plugins` entry point: runs in every process of an engine.

It names our model classes by dotted path (no model is imported), makes our load formats known,
follows how the engine loads, bounds what is logged and ties the process's life to its parent's.
"""

from omnistage.stages.messages.log_bound import bound_logs
from omnistage.stages.worker.lifetime import end_with_parent

MODELS = {
    "OmnistageQwenTextEncoder": "omnistage.stages.qwen_image.text_encoder_model:QwenTextEncoder",
    "OmnistageQwen3OmniTalker": "omnistage.stages.qwen3_omni.talker_model:Qwen3OmniTalker",
    "OmnistageQwen3OmniThinker": "omnistage.stages.qwen3_omni.thinker_model:Qwen3OmniThinker",
}


def register() -> None:
    """Register models and load formats; end with the parent where the parent is a stage."""
    from vllm import ModelRegistry

    from omnistage.stages.vllm.dummy_loader import register_dummy_loader
    from omnistage.stages.vllm.loading import register_loading

    known = ModelRegistry.get_supported_archs()
    for name, path in MODELS.items():
        if name not in known:
            ModelRegistry.register_model(name, path)
    register_dummy_loader()
    register_loading()
    bound_logs()
    end_with_parent()
