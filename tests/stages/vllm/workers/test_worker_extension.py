"""A user's class and ours as the one that vLLM mixes into its workers."""

import pytest
from support.stages.worker_methods import Methods
from vllm.utils.import_utils import resolve_obj_by_qualname

from omnistage.stages.vllm.workers import worker_extension
from omnistage.stages.vllm.workers.weights_worker import EXTENSION, WeightsWorker
from omnistage.stages.vllm.workers.worker_extension import extended_by, user_class_of

PATH = "support.stages.worker_methods.Methods"


def test_vllm_finds_both_by_one_name() -> None:
    name = extended_by(PATH)
    found = resolve_obj_by_qualname(name)
    assert issubclass(found, Methods)
    assert issubclass(found, WeightsWorker)
    assert resolve_obj_by_qualname(name) is found
    assert user_class_of(name) is Methods


def test_without_one_it_is_ours_alone() -> None:
    assert extended_by(None) == extended_by("") == EXTENSION
    assert user_class_of(EXTENSION) is None


def test_what_is_no_class_is_refused_before_an_engine_starts() -> None:
    with pytest.raises(ValueError, match="worker_extension_cls: "):
        extended_by("support.stages.worker_methods.Other")


@pytest.mark.parametrize("name", ["Other", "__path__"])
def test_other_names_are_not_made(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(worker_extension, name)
