"""OmniGen2's pipeline: images of words, and of words and up to five images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.pipeline_utils import ImagePipelineOutput
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from torch.nn.functional import interpolate
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from omnistage.stages.lumina2.conditions import EncodedTexts, References
from omnistage.stages.lumina2.flow import FlowPipeline
from omnistage.stages.lumina2.positions import MAX_REFERENCES
from omnistage.stages.lumina2.transformer import OmniGen2Transformer2DModel
from omnistage.stages.omnigen2.prompt import MAX_LENGTH, token_ids

MAX_PIXELS = 1024 * 1024  # of an image to refer to, and of one that is denoised
MAX_SIDE = 1024  # of an image to refer to
WITH_WEIGHTS = frozenset({"transformer", "vae", "mllm"})


class OmniGen2Pipeline(FlowPipeline):
    """Encodes words by a language model that sees, and denoises with images beside them.

    The language model reads the words alone: images to refer to are latents of the denoiser's.
    """

    model_cpu_offload_seq = "mllm->transformer->vae"
    # The published folder names modules of its own for some of them.
    component_classes: Mapping[str, Any] = {
        "transformer": OmniGen2Transformer2DModel,
        "vae": AutoencoderKL,
        "scheduler": FlowMatchEulerDiscreteScheduler,
        "mllm": Qwen2_5_VLForConditionalGeneration,
        "processor": Qwen2_5_VLProcessor,
    }
    media_limits: Mapping[str, int] = {"image": MAX_REFERENCES}

    def __init__(
        self, transformer: Any, vae: Any, scheduler: Any, mllm: Any, processor: Any
    ) -> None:
        """`mllm` and `processor` may be None: then calls must have `prompt_embeds`."""
        super().__init__()
        self.register_modules(
            transformer=transformer, vae=vae, scheduler=scheduler, mllm=mllm, processor=processor
        )
        self.set_sizes(transformer.config.patch_size)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, dtype: torch.dtype | None = None, **given: Any
    ) -> Self:
        """Read the components of a folder that are not given; some may be given as None."""
        parts = dict(given)
        for name in cls.component_classes.keys() - given.keys():
            options = {"torch_dtype": dtype} if name in WITH_WEIGHTS else {}
            parts[name] = cls.component_classes[name].from_pretrained(
                folder, subfolder=name, **options
            )
        return cls(**parts)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        input_images: list[Image.Image] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 28,
        guidance_scale: float = 4.0,
        image_guidance_scale: float = 1.0,
        num_images_per_prompt: int = 1,
        max_sequence_length: int = MAX_LENGTH,
        generator: torch.Generator | None = None,
        prompt_embeds: torch.Tensor | None = None,
        prompt_attention_mask: torch.Tensor | None = None,
        negative_prompt_embeds: torch.Tensor | None = None,
        negative_prompt_attention_mask: torch.Tensor | None = None,
        output_type: str = "pil",
    ) -> ImagePipelineOutput:
        """Make images, `num_images_per_prompt` of each prompt.

        Without a size an image with one reference is as large as that one, any other 1024 x 1024.
        `guidance_scale` is how much words weigh, `image_guidance_scale` references; 1 is not at
        all. `prompt_embeds` [prompts, length, size] are hidden states of `prompt`, with a mask
        [prompts, length]. Raises ValueError for sizes and references that cannot be.
        """
        self.check_inputs(height, width)
        texts = self._texts(prompt, prompt_embeds, prompt_attention_mask, max_sequence_length)
        count = len(texts.mask)
        others = None
        if guidance_scale > 1:
            if not isinstance(negative_prompt, list):
                negative_prompt = [negative_prompt or ""] * count
            others = self._texts(
                negative_prompt,
                negative_prompt_embeds,
                negative_prompt_attention_mask,
                max_sequence_length,
            ).repeated(num_images_per_prompt)
        texts = texts.repeated(num_images_per_prompt)
        references, sizes = self._references(input_images or (), generator)
        if height is None and width is None and len(sizes) == 1:
            ((height, width),) = sizes
        default = self.default_sample_size * self.vae_scale_factor
        wanted = (height or default, width or default)
        latents = self._noise(wanted, texts, generator)
        scales = guidance_scale, image_guidance_scale if references.sizes else 1.0

        def velocity(noisy: torch.Tensor, time: float) -> torch.Tensor:
            return self._velocity(noisy, time, (texts, others), references, scales)

        made = self._denoised(latents, num_inference_steps, velocity)
        image = interpolate(self._decoded(made), size=wanted, mode="bilinear")
        return ImagePipelineOutput(self.image_processor.postprocess(image, output_type))

    def _texts(
        self,
        prompts: str | list[str] | None,
        states: torch.Tensor | None,
        mask: torch.Tensor | None,
        max_length: int,
    ) -> EncodedTexts:
        """Return hidden states that are given, or those of prompts."""
        if states is not None and mask is not None:
            return EncodedTexts(states, mask)
        if prompts is None or self.mllm is None:
            raise ValueError("prompt_embeds and prompt_attention_mask are missing")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        ids = [token_ids(self.processor.tokenizer, one, max_length) for one in prompts]
        padded = self.processor.tokenizer.pad(
            {"input_ids": ids}, padding_side="right", return_tensors="pt"
        ).to(self._execution_device)
        found = self.mllm(
            input_ids=padded.input_ids,
            attention_mask=padded.attention_mask,
            output_hidden_states=True,
            logits_to_keep=1,
        )
        return EncodedTexts(found.hidden_states[-1], padded.attention_mask)

    def _references(
        self, images: Sequence[Image.Image], generator: torch.Generator | None
    ) -> tuple[References, list[tuple[int, int]]]:
        """Return images as the denoiser takes them, and each one's height and width there."""
        if len(images) > MAX_REFERENCES:
            raise ValueError(f"{len(images)} images; at most {MAX_REFERENCES}")
        channels, side = self.transformer.config.in_channels, self.transformer.config.patch_size
        nothing = torch.zeros(
            0, channels * side**2, device=self._execution_device, dtype=self.vae.dtype
        )
        sizes = [self._reduced(image) for image in images]
        found = [
            self.transformer.patches(self._encoded(image, size, generator))[0]
            for image, size in zip(images, sizes, strict=True)
        ]
        grids = [(h // self.side_multiple, w // self.side_multiple) for h, w in sizes]
        return References(torch.cat([nothing, *found]), grids), sizes

    def _reduced(self, image: Image.Image) -> tuple[int, int]:
        """Return the height and width that an image to refer to is reduced to."""
        width, height = image.size
        ratio = min(1.0, (MAX_PIXELS / (height * width)) ** 0.5, MAX_SIDE / max(height, width))
        multiple = self.side_multiple
        size = int(height * ratio) // multiple * multiple, int(width * ratio) // multiple * multiple
        if 0 in size:
            raise ValueError(
                f"an image of {width} x {height} pixels is too small or too narrow: of at most "
                f"{MAX_SIDE} pixels a side it must have {multiple}"
            )
        return size

    def _encoded(
        self, image: Image.Image, size: tuple[int, int], generator: torch.Generator | None
    ) -> torch.Tensor:
        """Return an image's latents [1, channels, height, width]."""
        pixels = self.image_processor.preprocess(image, *size)
        pixels = pixels.to(self._execution_device, self.vae.dtype)
        config = self.vae.config
        latents = self.vae.encode(pixels).latent_dist.sample(generator)
        return (latents - (config.shift_factor or 0)) * (config.scaling_factor or 1)

    def _noise(
        self, wanted: tuple[int, int], texts: EncodedTexts, generator: torch.Generator | None
    ) -> torch.Tensor:
        """Return latents to begin with; those of larger images than can be made are smaller."""
        ratio = min(1.0, (MAX_PIXELS / (wanted[0] * wanted[1])) ** 0.5)
        multiple, scale = self.side_multiple, self.vae_scale_factor
        height, width = (int(one * ratio) // multiple * multiple // scale for one in wanted)
        shape = (len(texts.mask), self.transformer.config.in_channels, height, width)
        return randn_tensor(shape, generator, self._execution_device, texts.states.dtype)

    def _velocity(
        self,
        latents: torch.Tensor,
        time: float,
        texts: tuple[EncodedTexts, EncodedTexts | None],
        references: References,
        scales: tuple[float, float],
    ) -> torch.Tensor:
        """Return where latents go: away from what they are without the words and images."""
        (given, none), (by_text, by_image) = texts, scales

        def predicted(known: EncodedTexts, images: References) -> torch.Tensor:
            rows = len(known.mask)
            found: torch.Tensor = self.transformer(
                hidden_states=latents.repeat(rows // len(latents), 1, 1, 1),
                timestep=latents.new_full((rows,), time),
                encoder_hidden_states=known.states,
                encoder_attention_mask=known.mask,
                **images.of_rows(rows),
            )
            return found

        if none is None:
            return predicted(given, references)
        if not references.sizes:
            full, empty = predicted(given.above(none), references).chunk(2)
            return empty + by_text * (full - empty)
        empty = predicted(none, references.none)
        if by_image <= 1:
            return empty + by_text * (predicted(given, references) - empty)
        full, seen = predicted(given.above(none), references).chunk(2)
        return empty + by_image * (seen - empty) + by_text * (full - seen)
