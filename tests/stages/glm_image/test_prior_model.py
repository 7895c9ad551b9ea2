"""What the model of image ids may sample, and what of its checkpoint it takes."""

from types import SimpleNamespace

import torch
from transformers import GlmImageConfig, PreTrainedConfig

from omnistage.stages.glm_image.prior_model import only_images, prior_config


def test_neither_marks_nor_words_are_ever_sampled() -> None:
    config = SimpleNamespace(vocab_size=12, num_image_ids=4)
    logits = torch.arange(12.0).view(2, 6)  # the marks behind the images' ids are the likeliest
    allowed = only_images(logits, config)
    assert allowed.shape == (2, 12)
    assert allowed[:, :4].tolist() == logits[:, :4].tolist()
    assert torch.isneginf(allowed[:, 4:]).all()
    assert allowed.argmax(-1).tolist() == [3, 3]


def test_the_engine_gets_the_language_models_configuration() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = GlmImageConfig(
        text_config={"rope_parameters": rope, "hidden_size": 64},
        vq_config={"num_embeddings": 99},
    )
    text = prior_config(config)
    assert text.architectures == ["OmnistageGlmImagePrior"]
    assert (text.num_image_ids, text.hidden_size, text.position_sections) == (99, 64, [2, 3, 3])
    assert "mrope_section" not in text.rope_parameters  # vLLM would count positions itself


def test_sections_that_a_checkpoint_does_not_name_are_the_class_s() -> None:
    assert prior_config(GlmImageConfig()).position_sections == [8, 12, 12]


def test_an_empty_configuration_is_left_alone() -> None:
    empty = PreTrainedConfig()
    assert prior_config(empty) is empty
