"""Stand-ins of pipelines whose modules have names or places of their own."""

from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import nn

SIZE = 4


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)
        return made


class Dit(nn.Module):
    scale: torch.Tensor

    def __init__(self, num_blocks: int = 5) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(SIZE, SIZE)
        self.blocks = nn.ModuleList(Encoder() for _ in range(num_blocks))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor, timestep: int) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(SIZE, SIZE)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.decoder(x)
        return made


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dit()
        self.lm_head = nn.Linear(SIZE, SIZE)


class OmniGen2:
    def __init__(self) -> None:
        self.mllm, self.transformer, self.vae = Encoder(), Dit(), Vae()
        self.scheduler = object()

    def __call__(self, x: torch.Tensor) -> Any:
        return self.vae.decode(self.transformer(self.mllm(x), 1))


class Bagel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.language_model, self.vit_model, self.vae = LanguageModel(), Encoder(), Vae()
        self.time_embedder = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.time_embedder(self.vit_model(x))
        dit = self.language_model.model
        x = x + dit.embed_tokens(torch.zeros(1, dtype=torch.long, device=x.device))
        return self.vae.decode(self.language_model.lm_head(dit(x, timestep=1)))


class Ltx2(DiffusionPipeline):  # type: ignore[misc]  # Diffusers has no types
    model_cpu_offload_seq = "text_encoder->connectors->transformer->vae->audio_vae->vocoder"

    def __init__(
        self,
        text_encoder: Any,
        connectors: Any,
        transformer: Any,
        vae: Any,
        audio_vae: Any,
        vocoder: Any,
    ) -> None:
        super().__init__()
        self.register_modules(
            text_encoder=text_encoder,
            connectors=connectors,
            transformer=transformer,
            vae=vae,
            audio_vae=audio_vae,
            vocoder=vocoder,
        )

    def __call__(self, x: torch.Tensor) -> Any:
        x = self.transformer(self.connectors(self.text_encoder(x)), 1)
        sound = self.vocoder(self.audio_vae.decode(x))
        return self.vae.decode(x) + sound


class Ltx2TwoStages:
    def __init__(self) -> None:
        self.pipe = Ltx2(Encoder(), Encoder(), Dit(), Vae(), Vae(), Encoder())
        self.vae = self.pipe.vae  # the same again, by another name

    def __call__(self, x: torch.Tensor) -> Any:
        return self.pipe(self.pipe(x))


class MammothModa2:
    def __init__(self) -> None:
        self.llm_model, self.gen_transformer, self.gen_vae = Encoder(), Dit(), Vae()

    def __call__(self, x: torch.Tensor) -> Any:
        return self.gen_vae.decode(self.gen_transformer(self.llm_model(x), 1))


class DreamIdOmni:
    def __init__(self) -> None:
        self.text_model, self.model = Encoder(), Dit()
        self.vae_model_video, self.vae_model_audio = Vae(), Vae()

    def __call__(self, x: torch.Tensor) -> Any:
        x = self.model(self.text_model(x), 1)
        return self.vae_model_video.decode(x) + self.vae_model_audio.decode(x)


BAGEL_MODULES = {
    "dit": ["language_model.model"],
    "resident": ["language_model.model.embed_tokens", "time_embedder"],
}
