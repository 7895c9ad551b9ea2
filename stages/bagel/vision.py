"""BAGEL's vision tower: SigLIP over images of any size, each at its own."""

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.siglip.modeling_siglip import SiglipEncoder

from omnistage.stages.bagel.cells import CellEmbedding
from omnistage.stages.bagel.settings import BagelSettings


class SeenTokens(nn.Module):
    """Makes tokens of the language model of an image's parts."""

    def __init__(self, settings: BagelSettings) -> None:
        super().__init__()
        config, size = settings.vision, settings.text.hidden_size
        config._attn_implementation = "sdpa"
        pixels = config.num_channels * config.patch_size**2
        self.patch_embedding = nn.Linear(pixels, config.hidden_size)
        number = (config.image_size // config.patch_size) ** 2
        self.position_embedding = nn.Embedding(number, config.hidden_size)
        self.encoder = SiglipEncoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.fc1 = nn.Linear(config.hidden_size, size)
        self.activation = ACT2FN["gelu_pytorch_tanh"]
        self.fc2 = nn.Linear(size, size)
        self.vit_pos_embed = CellEmbedding(settings.vision_side, size)

    def forward(self, parts: Tensor, cells: Tensor) -> Tensor:
        """Return tokens [batch, n, hidden_size] of parts [batch, n, pixels], at their cells."""
        dtype = self.fc1.weight.dtype
        hidden = self.patch_embedding(parts.to(dtype)) + self.position_embedding(cells)
        hidden = self.post_layernorm(self.encoder(inputs_embeds=hidden).last_hidden_state)
        made: Tensor = self.fc2(self.activation(self.fc1(hidden)))
        return made + self.vit_pos_embed(cells).to(dtype)
