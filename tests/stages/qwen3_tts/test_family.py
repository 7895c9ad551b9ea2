"""Which graph serves a checkpoint, and folders of real size."""

import json
from pathlib import Path
from pkgutil import resolve_name

import pytest

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_tts.family import FAMILY, pick
from omnistage.stages.qwen3_tts.model_config import load_config, talker_config
from omnistage.stages.qwen3_tts.talker_prompt import SpeechIds
from omnistage.stages.speech.text_tokens import TextTokenizer


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "model"
    resolve_name(FAMILY.tiny["qwen3-tts"].write_real_size)(folder)
    return folder


def picked(folder: Path, num_gpus: int) -> str | None:
    found = pick(Checkpoint(str(folder)), num_gpus)
    return None if found is None else found.file.name


def test_any_number_of_gpus_serves_from_one(real_folder: Path, tts_checkpoints: Path) -> None:
    assert picked(real_folder, 0) == "qwen3_tts_tiny.yaml"
    assert picked(real_folder, 1) == picked(real_folder, 8) == "qwen3_tts.yaml"
    assert picked(tts_checkpoints / "qwen3-tts", 8) == "qwen3_tts_tiny.yaml"


def test_other_models_are_not_picked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert picked(tmp_path, 1) is None


def test_the_kv_cache_of_the_graph_holds_every_seat_at_full_length(real_folder: Path) -> None:
    talker = load_graph(GRAPHS / "qwen3_tts.yaml").stages["talker"].engine
    config = talker_config(load_config(str(real_folder)))
    row = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    needed = talker["max_num_seqs"] * talker["max_model_len"] * row
    assert needed <= talker["kv_cache_memory_bytes"] <= 1.01 * needed


def test_a_folder_of_real_size_has_all_but_weights(real_folder: Path) -> None:
    config = load_config(str(real_folder))
    ids = SpeechIds.of(config)
    tokenizer = TextTokenizer(str(real_folder))
    assert (ids.im_start, ids.codec_eos, ids.speakers["vivian"]) == (151644, 2150, 3065)
    assert tokenizer.special("<|im_start|>") == ids.im_start
    assert tokenizer.special("<tts_pad>") == ids.tts_pad
    assert len(tokenizer.tokens("assistant\n")) == 2
    assert not list(real_folder.rglob("*.safetensors"))


def test_another_tokenizer_of_speech_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_tts", "tokenizer_type": "qwen3_tts_tokenizer_25hz"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="speaks for 'qwen3_tts_tokenizer_25hz'"):
        load_config(str(tmp_path))


@pytest.mark.parametrize("model", FAMILY.tiny)
def test_a_tiny_checkpoint_depends_on_its_seed_alone(model: str, tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        resolve_name(FAMILY.tiny[model].write)(tmp_path / name, seed)
    one, same, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other")
    )
    assert one == same != other
