"""Runs Mamoda2.5 by the class of docs/diffusion.md, tiny, and compares it with its authors' calls.

PYTHONPATH=tests:scripts python tools/mamoda.py CHECKOUT

CHECKOUT: the folder of github.com/bytedance/mammothmoda, whose code is read and which is installed
nowhere. Its denoiser's sizes that no configuration has are replaced by small ones; its weights are
random. Three videos, alone and at once below an engine, must equal the bare pipeline's; then a
server makes one. The exit code is 1 if a value differs by more than a step of a byte.
"""

import argparse
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import av
import httpx
import torch
import yaml
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler
from support.models.tiny_vision import write_tiny_vision
from support.servers.server import running_server
from support.tiny_pipelines.compare import compare
from transformers import AutoConfig, AutoTokenizer, Qwen3VLForConditionalGeneration

from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.checkpoint.files import write_json
from omnistage.stages.diffusion.loading.loading import LoadOptions

DOCS = Path(__file__).parents[1] / "docs" / "diffusion.md"
MODULE, DTYPE = "my_mamoda", "bfloat16"  # its connector computes in no other
HEADS, SIZE, TEXT_SIZE, NUM_LATENTS = 2, 32, 64, 48
# What the authors' code fixes: experts of 20 billion weights, and a connector of 4,096 numbers.
SMALLER = f"""
from src import transformer_mammothmoda as fixed
from src.config import MoELayerConfig, TransformerConnectorConfig, VLMTokenRefinerConfig

fixed.MoE_CONFIG_20B_A3B = MoELayerConfig(
    num_layers=2, hidden_size={SIZE}, num_attention_heads={HEADS}, ffn_hidden_size=16,
    num_moe_experts=4, moe_router_score_function="sigmoid", moe_router_topk=2,
)
connector = TransformerConnectorConfig(hidden_size=32, num_heads=2, ffn_dim=32)
fixed.VLMTokenRefinerConfig = lambda enable: VLMTokenRefinerConfig(
    vlm_dim={TEXT_SIZE}, transformer_config=connector, enable=enable
)
"""


def documented_class() -> str:
    """Return the module that the page shows."""
    (section,) = re.findall(r"^## Mamoda2\.5\n.*?(?=^## |\Z)", DOCS.read_text(), re.M | re.S)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    return str(code)


def write_tiny(folder: Path) -> None:
    """Write a folder of the published layout, by the authors' denoiser."""
    from src.transformer_mammothmoda import WanTransformer3DModel  # type: ignore[import-not-found]

    torch.manual_seed(0)
    write_tiny_vision(folder / "text_encoder", "qwen3_vl")
    config = AutoConfig.from_pretrained(folder / "text_encoder")
    AutoTokenizer.from_pretrained(folder / "text_encoder").save_pretrained(folder / "tokenizer")
    Qwen3VLForConditionalGeneration(config).save_pretrained(folder / "text_encoder")
    denoiser = WanTransformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=SIZE // HEADS,
        in_channels=NUM_LATENTS,
        out_channels=NUM_LATENTS,
        text_dim=TEXT_SIZE,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=128,
    )
    for weight in denoiser.parameters():
        weight.data = torch.randn_like(weight) * 0.2  # its experts are zeros
    denoiser.save_pretrained(folder / "transformer")
    AutoencoderKLWan(
        base_dim=16,
        z_dim=NUM_LATENTS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * NUM_LATENTS,
        latents_std=[1.0] * NUM_LATENTS,
    ).save_pretrained(folder / "vae")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    parts = {
        "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
    }
    write_json(folder / "model_index.json", {"_class_name": "MammothModa25Pipeline", **parts})


def video_over_http(folder: Path, work: Path) -> tuple[int, int, int]:
    """Return the frames, width and height of a video that a server makes."""
    document = yaml.safe_load((GRAPHS / "diffusers.yaml").read_text())
    small = {"height": 32, "width": 32, "num_frames": 5, "max_sequence_length": 16}
    engine = {"pipeline_class": f"{MODULE}.Mamoda25", "dtype": DTYPE, "warm_up": small}
    document["stages"]["dit"] |= {"engine": engine}
    document["outputs"] = {"video": "dit"}
    graph = work / "graph.yaml"
    graph.write_text(yaml.safe_dump(document))
    with running_server(str(graph), work / "log", "--model", str(folder)) as server:
        body = {"prompt": "a cat", "size": "32x32", "num_frames": 5, "num_inference_steps": 3}
        made = httpx.post(f"{server.url}/v1/videos/sync", json=body, timeout=600)
    assert made.status_code == 200, made.text
    with av.open(io.BytesIO(made.content)) as container:
        frames = list(container.decode(video=0))
    return len(frames), frames[0].width, frames[0].height


def main() -> None:
    """Compare, serve, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout / "mamoda25"
    if not (checkout / "src").is_dir():
        parser.error(f"{checkout} has no src: not a checkout of bytedance/mammothmoda")
    with tempfile.TemporaryDirectory(prefix="mamoda25") as name:
        work = Path(name)
        (work / f"{MODULE}.py").write_text(SMALLER + documented_class())
        paths = [str(work), str(checkout)]
        sys.path[:0] = paths
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
        made: Any = getattr(__import__(MODULE), "Mamoda25")  # noqa: B009
        folder = work / "model"
        write_tiny(folder)
        options = LoadOptions(pipeline_class=f"{MODULE}.Mamoda25", dtype=DTYPE)
        bare, ours = (options.load(str(folder)).pipeline for _ in range(2))
        found = compare(made, (bare, ours))
        made_of = "{} frames of {} x {}".format(*video_over_http(folder, work))
    gaps = f"alone {found.alone:.2e}, together {found.together:.2e}"
    sys.stdout.write(f"{gaps}: {found}\nover HTTP: {made_of}\n")
    sys.exit(not found.is_equal)


if __name__ == "__main__":
    main()
