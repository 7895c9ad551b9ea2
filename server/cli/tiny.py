"""`omnistage tiny`."""

from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.cli.graphs import fail

TINY_PIPELINES = ("flux", "qwen-image", "sd3", "wan")
REAL_SIZES = ("qwen3-omni", "qwen-image")
TINY_MODELS = ("qwen3-omni", *TINY_PIPELINES, "embedding")


def tiny(
    model: Annotated[str, typer.Argument(help=f"The model: one of {', '.join(TINY_MODELS)}.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    seed: Annotated[int, typer.Option(help="The seed of the random weights.")] = 0,
    real_size: Annotated[
        bool,
        typer.Option(
            "--real-size",
            help="Write the real sizes without weights, to be served with --load-format dummy.",
        ),
    ] = False,
) -> None:
    """Write a tiny checkpoint with random weights, to try and test with."""
    if model not in TINY_MODELS:
        raise fail(f"unknown model {model!r}; allowed: {', '.join(TINY_MODELS)}")
    if real_size and model not in REAL_SIZES:
        raise fail(f"{model} has no real size here; {', '.join(REAL_SIZES)} have")
    if real_size and model == "qwen-image":
        from omnistage.stages.diffusion.checkpoint.real_qwen_image import write_real_qwen_image

        write_real_qwen_image(folder)
        return
    if model in TINY_PIPELINES:
        from omnistage.stages.diffusion.checkpoint import write_tiny

        write_tiny(model, folder, seed)
        return
    if model == "embedding":
        from omnistage.stages.checkpoint.tiny_embedding import write_tiny_embedding

        write_tiny_embedding(folder, seed)
        return
    if real_size:
        from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder

        write_real_size_folder(folder)
        return
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(folder, seed)
