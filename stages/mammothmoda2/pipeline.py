"""MammothModa2's pipeline: images of the states of texts and of image ids."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.pipeline_utils import ImagePipelineOutput
from diffusers.utils.torch_utils import randn_tensor

from omnistage.stages.lumina2.conditions import EncodedTexts, References
from omnistage.stages.lumina2.flow import FlowPipeline
from omnistage.stages.lumina2.transformer import OmniGen2Transformer2DModel
from omnistage.stages.mammothmoda2.checkpoint.weights import read_parts
from omnistage.stages.mammothmoda2.image_states import ImageStates


class MammothModa2Pipeline(FlowPipeline):
    """Denoises beside the states of a text and those of an image's ids, which a language model
    upstream computes.
    """

    model_cpu_offload_seq = "image_states->transformer->vae"

    def __init__(
        self,
        transformer: OmniGen2Transformer2DModel,
        image_states: ImageStates,
        vae: AutoencoderKL,
        scheduler: FlowMatchEulerDiscreteScheduler,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, image_states=image_states, vae=vae, scheduler=scheduler
        )
        self.set_sizes(transformer.config.patch_size)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, dtype: torch.dtype | None = None, **given: Any
    ) -> Self:
        """Read the parts of a published folder that are not given; some may be given as None."""
        parts: Mapping[str, Any] = {
            **read_parts(Path(folder), dtype or torch.float32, given.keys()),
            "scheduler": FlowMatchEulerDiscreteScheduler(),
            **given,
        }
        return cls(**parts)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        guidance_scale: float = 9.0,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | None = None,
        prompt_embeds: torch.Tensor | None = None,
        prompt_attention_mask: torch.Tensor | None = None,
        negative_prompt_embeds: torch.Tensor | None = None,
        negative_prompt_attention_mask: torch.Tensor | None = None,
        num_image_rows: int | None = None,
        output_type: str = "pil",
    ) -> ImagePipelineOutput:
        """Make images, `num_images_per_prompt` of each prompt, 1024 x 1024 without a size.

        `prompt_embeds` [prompts, length, size] are states, the last `num_image_rows` of each prompt
        those of its image's ids; masks are [prompts, length]. `guidance_scale`: how much both
        weigh; 1 is not at all. Raises ValueError for sizes that cannot be, and without states.
        """
        if prompt_embeds is None or prompt_attention_mask is None or not num_image_rows:
            raise ValueError("prompt_embeds, prompt_attention_mask or num_image_rows is missing")
        self.check_inputs(height, width)
        texts, states = divided(prompt_embeds, prompt_attention_mask, num_image_rows)
        context = self.image_states(states).repeat_interleave(num_images_per_prompt, dim=0)
        texts = texts.repeated(num_images_per_prompt)
        has_context = torch.ones_like(context[..., 0], dtype=torch.bool)
        if guidance_scale > 1:
            if negative_prompt_embeds is None or negative_prompt_attention_mask is None:
                raise ValueError("negative_prompt_embeds is missing")
            others = EncodedTexts(negative_prompt_embeds, negative_prompt_attention_mask)
            texts = texts.above(others.repeated(num_images_per_prompt))
            context = torch.cat([context, torch.zeros_like(context)])
            has_context = torch.cat([has_context, torch.zeros_like(has_context)])
        rows = len(texts.mask)
        nothing = References(context.new_zeros(0, self._patch_size)).of_rows(rows)

        def velocity(latents: torch.Tensor, time: float) -> torch.Tensor:
            found = self.transformer(
                hidden_states=latents.repeat(rows // len(latents), 1, 1, 1),
                timestep=latents.new_full((rows,), time),
                encoder_hidden_states=texts.states,
                encoder_attention_mask=texts.mask,
                context=context,
                context_mask=has_context,
                **nothing,
            )
            if rows == len(latents):
                return found
            full, empty = found.chunk(2)
            return empty + guidance_scale * (full - empty)

        default = self.default_sample_size * self.vae_scale_factor
        sides = [(side or default) // self.vae_scale_factor for side in (height, width)]
        shape = (len(prompt_embeds) * num_images_per_prompt, self.transformer.config.in_channels)
        noise = randn_tensor(
            (*shape, *sides), generator, self._execution_device, texts.states.dtype
        )
        image = self._decoded(self._denoised(noise, num_inference_steps, velocity))
        return ImagePipelineOutput(self.image_processor.postprocess(image, output_type))

    @property
    def _patch_size(self) -> int:
        config = self.transformer.config
        return config.in_channels * config.patch_size**2


def divided(
    states: torch.Tensor, mask: torch.Tensor, num_image_rows: int
) -> tuple[EncodedTexts, torch.Tensor]:
    """Return texts, and the states [prompts, num_image_rows, size] that stand behind each."""
    longest = mask.shape[1] - num_image_rows
    lengths = mask.sum(dim=1, keepdim=True) - num_image_rows
    places = lengths + torch.arange(num_image_rows, device=mask.device)
    images = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
    text_mask = (torch.arange(longest, device=mask.device) < lengths).to(mask.dtype)
    return EncodedTexts(states[:, :longest], text_mask), images
