"""The model of image ids: what its checkpoint's configuration makes of it, and what it samples."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from omnistage.stages.mammothmoda2.image_ids import usual_sampling
from omnistage.stages.mammothmoda2.image_ids_model import only_followers
from omnistage.stages.mammothmoda2.model_config import (
    LAYERS,
    ImageIdsConfig,
    MammothModa2Config,
    generation_layers,
    tapped_layers,
)
from omnistage.stages.mammothmoda2.step_schema import ANY, IMAGE_END, LINE_END

MAKE = ImageIdsConfig(first_id=296, line_end=288, image_end=294, guidance=7.0)


def test_heads_are_pairs_and_wider_by_a_number_that_masks(tiny_mammothmoda2: Path) -> None:
    made = MAKE(AutoConfig.from_pretrained(tiny_mammothmoda2))
    assert made.architectures == ["OmnistageMammothModa2ImageIds"]
    assert (made.num_attention_heads, made.num_key_value_heads) == (4, 2)
    assert (made.own_head_dim, made.head_dim) == (32, 64)
    assert (made.vocab_size, made.text_vocab_size, made.image_vocab_start) == (360, 288, 288)
    assert (made.tapped_layers, made.generation_layers) == ([3, 2, 1], [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "mammothmoda2_qwen2_5_vl"}, "served is 'mammothmoda2_qwen3_vl'"),
        ({"moe_type": "ffn_attention"}, "moe_type 'ffn_attention' is not served"),
    ],
)
def test_a_backbone_that_is_not_served_is_refused(
    changed: dict[str, Any], message: str, tiny_mammothmoda2: Path
) -> None:
    config = json.loads((tiny_mammothmoda2 / "config.json").read_text())
    config["llm_config"] |= changed
    with pytest.raises(ValueError, match=message):
        MAKE(MammothModa2Config(**config))


def test_an_empty_configuration_is_left_alone() -> None:
    empty = PreTrainedConfig()
    assert MAKE(empty) is empty


def test_tapped_layers_are_those_whose_inputs_transformers_names() -> None:
    assert tapped_layers(LAYERS, 36) == [35, 32, 29, 26, 23, 20]
    for wrong in ([-1], [36], [-40]):
        with pytest.raises(ValueError, match="each must be a layer's input"):
            tapped_layers(wrong, 36)


@pytest.mark.parametrize(
    ("kind", "layers"),
    [("none", []), ("ffn", [0, 1, 2, 3]), ("ffn-2:4", [2, 3]), ("ffn-1:9", [1, 2, 3])],
)
def test_images_have_networks_of_their_own_in_layers_of_a_span(
    kind: str, layers: list[int]
) -> None:
    assert generation_layers(kind, 4) == layers


def test_where_an_id_must_follow_it_alone_is_likely() -> None:
    logits = torch.arange(12.0).view(3, 4)
    made = only_followers(logits, torch.tensor([ANY, LINE_END, IMAGE_END]), [1, 0])
    assert made[0].tolist() == logits[0].tolist()
    assert [row.argmax().item() for row in made[1:]] == [1, 0]
    assert torch.isneginf(made[1:]).sum() == 6


def test_a_checkpoint_says_how_its_ids_are_sampled() -> None:
    told = {"temperature": 0.9, "top_k": 2048, "top_p": None, "eos_token_id": 3}
    assert usual_sampling({"do_sample": True, **told}) == {"temperature": 0.9, "top_k": 2048}
    penalty = {"repetition_penalty": 1.1}
    assert usual_sampling({**told, **penalty}) == {"temperature": 0.0, **penalty}
