"""The decoder is trained on alone: the denoiser's latents stay what they were."""

import sys
from pathlib import Path

import pytest
import torch
from diffusers.models.transformers import transformer_qwenimage
from image import data, sharpen
from image.data import pool
from image.draw import Batch, Drawer
from image.parts import make_tokenizer
from image.sharpen import NOISE, as_served, differences
from image.vae import Coder
from image.write_image import trained

CHECKPOINT = Path(__file__).parents[2] / "stage_configs/checkpoints/small-image"


class Exact(Drawer):
    """Knows each picture, and gives the velocity that leads to it."""

    def __init__(self, exact: torch.Tensor) -> None:
        super().__init__()
        self._exact = exact

    def forward(
        self, latents: torch.Tensor, sigmas: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        return (latents - self._exact) / sigmas[:, None, None]


def test_the_decoder_is_given_what_is_predicted_and_what_has_noise() -> None:
    torch.manual_seed(0)
    exact = torch.randn(8, 64, 32)
    ids = torch.zeros(8, 50, dtype=torch.long)
    given = Batch(torch.zeros(8, 3, 128, 128), exact, ids, ids[:, 0] + 50)
    served = as_served(given, Exact(exact[:4]))
    torch.testing.assert_close(served[:4], exact[:4], atol=1e-4, rtol=0)
    apart = (served[4:] - exact[4:]).std((1, 2))
    assert (apart > 0).all()
    assert (apart < 1.1 * NOISE).all()


def test_a_soft_edge_costs_more_than_as_much_elsewhere() -> None:
    wanted = torch.zeros(1, 3, 8, 8)
    wanted[..., 4:] = 1
    soft, pale = wanted.clone(), wanted * 0.875
    soft[..., 4] = 0.5
    (soft_by, soft_edges), (pale_by, pale_edges) = (
        differences(made, wanted) for made in (soft, pale)
    )
    torch.testing.assert_close(soft_by, pale_by)
    assert soft_edges > 2 * pale_edges


def test_drawings_of_three_shapes_are_trained_twice() -> None:
    drawn = pool(400, make_tokenizer(), torch.device("cpu"))
    rows = torch.cat([drawn.ids, drawn.contents.places.flatten(1)], 1)
    full = (drawn.contents.kinds >= 0).all(1)
    _, times = rows[full].unique(dim=0, return_counts=True)
    assert (times % (1 + data.MORE_FULL) == 0).all()
    _, times = rows[~full].unique(dim=0, return_counts=True)
    assert (times == 1).sum() > 0.9 * len(times)


def test_a_training_on_from_a_checkpoint_changes_the_decoder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawer = Drawer()
    drawer.begin(CHECKPOINT)
    torch.save({"drawer": drawer.state_dict()}, tmp_path / "draw.pt")
    options = ["--out", str(tmp_path), "--checkpoint", str(CHECKPOINT)]
    monkeypatch.setenv("POOL", "50")
    monkeypatch.setattr(transformer_qwenimage, "compute_text_seq_len_from_mask", None)
    monkeypatch.setattr(sys, "argv", ["sharpen.py", *options, "--steps", "2", "--batch", "0.05"])
    sharpen.main()
    before = Coder()
    before.begin(CHECKPOINT)
    after = trained(tmp_path, CHECKPOINT).vae
    assert after.config.latents_mean == before.mean.tolist()
    assert after.config.latents_std == before.spread.tolist()
    made, kept = after.state_dict(), before.vae.state_dict()
    changed = {name.split(".")[0] for name in kept if not torch.equal(made[name], kept[name])}
    assert changed == {"decoder", "post_quant_conv"}
