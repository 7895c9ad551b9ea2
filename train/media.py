"""Rows of a trained thinker at pictures and sounds, of the layer that its talker reads."""

import random
from typing import Any

import numpy as np
import torch
from batches import collate
from language.samples import Sample
from language.tokens import make_tokenizer
from loop import arguments
from sizes import small_config
from thinker import Reader, new_thinker, read_tasks
from towers import speed_up

COUNT, AT_ONCE = 4096, 128


class _Found(Exception):
    """The rows, before the layers that nobody asked for."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = rows


def rows_at(reader: Reader, batch: dict[str, Any], device: torch.device, layer: int) -> Any:
    """The input [b, t, width] of a layer."""

    def stop(_: Any, arguments: tuple[Any, ...], given: dict[str, Any]) -> None:
        raise _Found(arguments[0] if arguments else given["hidden_states"])

    hook = reader.thinker.model.layers[layer].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        reader(batch, device, augment=False)
    except _Found as found:
        return found.rows
    finally:
        hook.remove()
    raise AssertionError(f"the thinker has no layer {layer}")


@torch.no_grad()
def main() -> None:
    """Write media.pt: prompts, sizes of their pictures, rows of their media.

    The thinker is the checkpoint's if one is given, else that of thinker.pt.
    """
    run = arguments(1)
    speed_up()
    tasks, _ = read_tasks(run)
    reader = Reader(new_thinker())
    if run.checkpoint is None:
        state = torch.load(run.out / "thinker.pt", map_location="cpu", weights_only=True)
        reader.load_state_dict(state["reader"])
    run.begin(reader.thinker, "thinker")
    reader.to(run.device)
    config = reader.thinker.config
    marks = torch.tensor([config.image_token_id, config.audio_token_id], device=run.device)
    layer = small_config(make_tokenizer()).talker_config.accept_hidden_layer
    pick = random.Random(31)
    made = []
    for _ in range(run.size(COUNT) // AT_ONCE or 1):
        kinds = pick.choices(("seen", "heard", "both"), k=AT_ONCE - 2)
        samples: list[Sample] = [tasks.kinds[kind](pick) for kind in (*kinds, "both", "both")]
        batch = collate(samples)
        with run.autocast():
            rows = rows_at(reader, batch, run.device, layer).float()
        is_media = torch.isin(batch["ids"].to(run.device), marks)
        for index, one in enumerate(samples):
            made.append(
                {
                    "ids": torch.from_numpy(one.prompt),
                    "pictures": [picture.cells for picture in one.pictures],
                    "rows": rows[index][is_media[index]].bfloat16().cpu(),
                }
            )
    new = run.out / "media.new"
    torch.save(made, new)
    new.replace(run.out / "media.pt")
    sizes = np.mean([float(one["rows"].float().pow(2).mean()) for one in made])
    print(f"{len(made)} prompts with media; mean square of their rows {sizes:.2f}", flush=True)


if __name__ == "__main__":
    main()
