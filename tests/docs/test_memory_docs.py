"""The layouts of docs/memory.md are computed from the models' configurations, and load."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "memory.md").read_text()
MIGRATING = (ROOT / "docs" / "migrating.md").read_text()
GB, BYTES = 10**9, 2  # of a parameter in bfloat16
UNQUANTIZED = (r".*embed_tokens$", r".*lm_head$", r".*norm$")  # no products, or vLLM's own choice
LOW = re.compile(r"transformer_blocks\.\d+\.(attn|ff)\.")  # in token2wav; the others are float32


def cells(start: str) -> list[str]:
    """The cells of the one row of a table that begins so."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.fixture(scope="module")
def parameters() -> dict[str, int]:
    """How many the parts of Qwen3-Omni-30B-A3B have, as transformers makes them."""
    import torch
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config

    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration._from_config(real_config())
    parts = ("thinker", "talker", "code2wav")
    return {name: sum(p.numel() for p in getattr(model, name).parameters()) for name in parts}


@pytest.fixture(scope="module")
def config() -> Any:
    from omnistage.stages.qwen3_omni.checkpoint.real_config import real_config

    return real_config()


@pytest.fixture(scope="module")
def weights_gb(parameters: dict[str, int], config: Any) -> dict[str, float]:
    """Of each stage; the talker holds the thinker's embeddings too, projected to its width."""
    thinker = config.thinker_config.text_config
    projected = thinker.vocab_size * config.talker_config.text_config.hidden_size
    held = parameters | {"talker": parameters["talker"] + projected}
    return {name: number * BYTES / GB for name, number in held.items()}


def test_the_weights_are_those_of_the_configuration(
    parameters: dict[str, int], weights_gb: dict[str, float], config: Any
) -> None:
    for name in ("thinker", "talker", "code2wav"):
        row = cells(f"{'the ' if name != 'code2wav' else ''}{name}'s weights")
        assert row[1].startswith(f"{parameters[name] / GB:.2f} G")
        assert row[2] == f"{weights_gb[name]:.1f}"
    assert cells("all three")[2] == f"{sum(weights_gb.values()):.1f}"
    assert f"{config.thinker_config.text_config.vocab_size:,} embeddings" in TEXT


def kv_bytes(text: Any) -> int:
    """Of one position."""
    return int(text.num_hidden_layers * 2 * text.num_key_value_heads * text.head_dim * BYTES)


def test_the_kv_caches_are_those_of_the_configuration(config: Any) -> None:
    thinker = config.thinker_config.text_config
    talker = config.talker_config.text_config
    for start, text in (("a token of the thinker", thinker), ("a codec frame", talker)):
        row = cells(start)
        assert row[1].startswith(f"{text.num_hidden_layers} layers x 2")
        assert f"{text.num_key_value_heads} heads x {text.head_dim} x 2 bytes" in row[1]
        assert row[2] == f"{kv_bytes(text):,}"
    assert f"32,768 tokens takes {32768 * kv_bytes(thinker) / GB:.1f} GB" in TEXT
    assert (
        f"8,192 frames, eleven minutes of speech, takes {8192 * kv_bytes(talker) / GB:.2f} GB"
        in TEXT
    )


def test_one_gpu_holds_what_its_graph_reserves(weights_gb: dict[str, float], config: Any) -> None:
    stages = load_graph(GRAPHS / "qwen3_omni_1gpu.yaml").stages
    row = cells("one of 141 GB")
    total = sum(weights_gb.values())
    texts = {
        "thinker": config.thinker_config.text_config,
        "talker": config.talker_config.text_config,
    }
    positions = {"thinker": 262_144, "talker": 64 * 8192}
    for cell, name in zip(row[1:3], texts, strict=True):
        kv = stages[name].engine["kv_cache_memory_bytes"]
        assert kv // kv_bytes(texts[name]) == pytest.approx(positions[name], rel=1e-3)
        assert cell.startswith(f"{weights_gb[name]:.1f} weights, {kv / GB:.1f} KV")
        total += kv / GB
    assert row[4] == f"{total:.1f}"
    assert row[5].startswith(f"{141 - float(row[4]):.1f} GB")


def test_80_gb_hold_what_their_graph_reserves_with_the_thinker_in_fp8(
    weights_gb: dict[str, float], parameters: dict[str, int], config: Any
) -> None:
    import torch
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    stages = load_graph(GRAPHS / "qwen3_omni_1gpu_80gb.yaml").stages
    engine = stages["thinker"].engine
    ignored = [one.removeprefix("re:") for one in engine["quantization_config"]["ignore"]]
    kept = re.compile("|".join([*ignored, *UNQUANTIZED]))
    with torch.device("meta"):
        model = Qwen3OmniMoeThinkerForConditionalGeneration._from_config(config.thinker_config)
    assert isinstance(model, torch.nn.Module)
    layers = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not kept.match(name.removesuffix(".weight"))
    )
    rest = parameters["thinker"] - layers
    fp8 = (layers + rest * BYTES) / GB
    row = cells("the thinker's in FP8")
    assert row[1].startswith(f"{layers / GB:.2f} G of its layers x 1; ")
    assert row[1].endswith(f" {rest / GB:.2f} G x 2")
    assert row[2] == f"{fp8:.1f}"
    row = cells("one of 80 GB: `stage_configs/qwen3_omni")
    kv = {name: stages[name].engine["kv_cache_memory_bytes"] for name in ("thinker", "talker")}
    per_token = kv_bytes(config.thinker_config.text_config)
    assert row[1] == (
        f"{fp8:.1f} weights in FP8, {kv['thinker'] / GB:.1f} KV: "
        f"{kv['thinker'] // per_token:,} tokens"
    )
    assert f"KV cache to {per_token // 2:,} bytes per token" in TEXT
    assert f"GB then hold {2 * kv['thinker'] // per_token:,} tokens" in TEXT
    per_answer = 8192 * kv_bytes(config.talker_config.text_config)
    assert kv["talker"] // per_answer == stages["talker"].engine["max_num_seqs"] == 32
    assert row[2].startswith(f"{weights_gb['talker']:.1f} weights, {kv['talker'] / GB:.1f} KV: 32")
    total = fp8 + weights_gb["talker"] + weights_gb["code2wav"] + sum(kv.values()) / GB
    assert row[4] == f"{total:.1f}"
    assert row[5].startswith(f"{80 - total:.1f} GB")


def test_two_gpus_hold_what_their_graph_gives(weights_gb: dict[str, float], config: Any) -> None:
    stages = load_graph(GRAPHS / "qwen3_omni.yaml").stages
    thinker = stages["thinker"].engine["gpu_memory_utilization"] * 80
    rest = thinker - weights_gb["thinker"]
    first = cells("two of 80 GB: ")
    assert first[1].startswith(f"0.9 of it is {thinker:.1f}: {weights_gb['thinker']:.1f} weights, ")
    assert f"{rest:.1f} for activations and KV" in first[1]
    num_tokens = rest * GB / kv_bytes(config.thinker_config.text_config)
    assert f"at most {round(num_tokens, -3):,.0f} tokens" in first[1]
    assert first[4:] == [f"{thinker:.1f}", f"{80 - thinker:.1f} GB"]
    talker = stages["talker"].engine["gpu_memory_utilization"] * 80
    second = cells("two of 80 GB, second")
    assert second[2].startswith(f"0.6 of it is {talker:.1f}: {weights_gb['talker']:.1f} weights, ")
    assert f"{talker - weights_gb['talker']:.1f} for activations" in second[2]
    total = talker + weights_gb["code2wav"]
    assert second[4:] == [f"{total:.1f}", f"{80 - total:.1f} GB"]


def test_a_smaller_second_gpu(weights_gb: dict[str, float], config: Any) -> None:
    given = 0.6 * 24
    rest = given - weights_gb["talker"]
    num_answers = rest * GB / (8192 * kv_bytes(config.talker_config.text_config))
    (sentence,) = re.findall(r"On a GPU of 24 GB, .*?nothing\.", " ".join(TEXT.split()))
    parts = f"{weights_gb['talker']:.1f} for weights, {rest:.1f} for activations and KV cache"
    assert f"{given:.1f} GB: {parts}." in sentence
    (shown,) = re.findall(r"about (\d+) answers", sentence)
    assert num_answers - 5 < int(shown) <= num_answers


def test_the_layouts_of_qwen2_5_omni_are_those_of_its_configuration_and_graphs() -> None:
    import torch
    from transformers import Qwen2_5OmniForConditionalGeneration

    from omnistage.stages.qwen2_5_omni.checkpoint.real_config import B7, real_config

    config = real_config(B7)
    with torch.device("meta"):
        model = Qwen2_5OmniForConditionalGeneration._from_config(config)
    weights = {}
    for name, size in (("thinker", 2), ("talker", 2), ("token2wav", 4)):
        parameters = dict(model.get_submodule(name).named_parameters())
        number = sum(p.numel() for p in parameters.values())
        weights[name] = number * size / GB
        assert cells(f"the 7B's {name}")[1].startswith(f"{number / GB:.2f} G")
        if name == "token2wav":
            low = sum(p.numel() for name, p in parameters.items() if LOW.search(name))
            weights[name] -= low * (size - BYTES) / GB
            assert cells(f"the 7B's {name}")[1].endswith(f" {low / GB:.2f} G of them x 2")
        assert cells(f"the 7B's {name}")[2] == f"{weights[name]:.1f}"
    for graph in ("qwen2_5_omni_1gpu.yaml", "qwen2_5_omni.yaml"):
        assert load_graph(GRAPHS / graph).stages["token2wav"].engine["dtype"] == "bfloat16"
    text, talker = config.thinker_config.text_config, config.talker_config
    per_token = text.num_hidden_layers * 2 * text.num_key_value_heads * 128 * BYTES
    per_code = talker.num_hidden_layers * 2 * talker.num_key_value_heads * 128 * BYTES
    assert cells("a token of the 7B's")[2] == f"{per_token:,}"
    assert cells("a position of the 7B's")[2] == f"{per_code:,}"
    kv = {
        name: stage.engine.get("kv_cache_memory_bytes", 0)
        for name, stage in load_graph(GRAPHS / "qwen2_5_omni_1gpu.yaml").stages.items()
    }
    row = cells("one of 80 GB: `stage_configs/qwen2_5")
    told = f"{weights['thinker']:.1f} weights, {kv['thinker'] / GB:.1f} KV"
    assert row[1] == f"{told}: {kv['thinker'] // per_token:,} tokens"
    assert kv["talker"] == 64 * 8192 * per_code + (4 << 20)  # a spare block among them
    assert row[2].startswith(f"{weights['talker']:.1f} weights, {kv['talker'] / GB:.1f} KV")
    total = sum(weights.values()) + sum(kv.values()) / GB
    assert row[4] == f"{total:.1f}"
    assert row[5].startswith(f"{80 - total:.1f} GB")
    stages = load_graph(GRAPHS / "qwen2_5_omni.yaml").stages
    given = {
        name: stages[name].engine["gpu_memory_utilization"] * 48 for name in weights if kv[name]
    }
    row = cells("two of 48 GB")
    for cell, (name, share) in zip(row[1:3], given.items(), strict=True):
        told = f"{share:.1f}: {weights[name]:.1f} weights, {share - weights[name]:.1f} for"
        assert told in cell
    assert row[2].endswith(f"64 answers need {64 * 8192 * per_code / GB:.1f}")
    assert row[5] == f"{48 - given['talker'] - weights['token2wav']:.1f} GB of the other"


@pytest.mark.parametrize("size", [24, 48, 80, 141])
def test_a_text_model_s_size(size: int) -> None:
    assert cells(f"{size} GB | {size} x")[1:] == [
        f"{size} x 0.9 x 0.75 / 2",
        f"{size * 0.9 * 0.75 / 2:.1f} G",
    ]


def test_the_pictures_figures_are_those_that_were_measured() -> None:
    history = (ROOT / "docs" / "history" / "performance.md").read_text()
    for start in ("none | 59", "`sequential`", "`layerwise`"):
        name, reserved, seconds, _ = cells(start)
        gib, gb = re.fullmatch(r"([\d.]+) GiB = ([\d.]+) GB", reserved).groups()  # type: ignore[union-attr]
        assert f"{float(gib) * 2**30 / GB:.1f}" == gb
        (row,) = re.findall(rf"^\| {name.strip('`')} \| ([\d.]+) \| .*\({gib}\)", history, re.M)
        assert float(row) == float(seconds)


def graphs() -> Iterator[Any]:
    for text, name in ((TEXT, "memory"), (MIGRATING, "migrating")):
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
            yield pytest.param(block, id=f"{name}-{number}")


@pytest.mark.parametrize("block", list(graphs()))
def test_a_graph_file_that_is_shown_is_valid(block: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(block)
    assert load_graph(path).stages.keys() == yaml.safe_load(block)["stages"].keys()


def test_there_are_graph_files() -> None:
    assert len(list(graphs())) == 4
