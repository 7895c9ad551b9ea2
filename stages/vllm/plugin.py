"""The `vllm.general_plugins` entry point: runs in every process of an engine.

It names the model classes of all families by dotted path (no model is imported), makes our load
formats known, follows how the engine loads, counts what it compiles, bounds what is logged and ties
the process's life to its parent's.
"""

import logging
from collections.abc import Mapping

from omnistage.connectors.registry import Unusable
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.family import Family
from omnistage.stages.messages.log_bound import bound_logs
from omnistage.stages.worker.process.garbage import end_imports
from omnistage.stages.worker.process.lifetime import end_with_parent

logger = logging.getLogger("omnistage.families")


def register() -> None:
    """Register models and load formats; end with the parent where the parent is a stage."""
    from omnistage.stages.device.compiling import count_compiles
    from omnistage.stages.vllm.loading.dummy_loader import register_dummy_loader
    from omnistage.stages.vllm.loading.loading import register_loading

    register_models()
    register_dummy_loader()
    register_loading()
    count_compiles()
    bound_logs()
    end_with_parent()
    end_imports()


def register_models() -> None:
    """Registers the models of every family that can be used, and reports why others cannot."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for name in FAMILIES.owners(_models).keys() - known:
        try:
            ModelRegistry.register_model(name, FAMILIES.part(name, _models))
        except Unusable as error:
            logger.warning("%s", error)
    for problem in FAMILIES.problems():
        logger.warning("%s", problem)


def _models(family: Family) -> Mapping[str, str]:
    return family.vllm_models
