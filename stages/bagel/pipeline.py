"""BAGEL as a pipeline: images of texts and of images, with a thought before them if wanted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils import BaseOutput
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from omnistage.stages.bagel.cells import cells_of, joined_parts
from omnistage.stages.bagel.checkpoint.weights import read_modules, read_vae
from omnistage.stages.bagel.contexts import ContextBuilder, Generator, ReadContext
from omnistage.stages.bagel.guidance import FlowGuidance, Renormalisation
from omnistage.stages.bagel.readers import ImageReader, LatentReader, TextReader
from omnistage.stages.bagel.settings import MARKS, BagelSettings
from omnistage.stages.bagel.texts import MAX_THINK_TOKENS, THINKING, check_text
from omnistage.stages.bagel.transformer import BagelTransformer, FlowRow


@dataclass
class BagelOutput(BaseOutput):
    """Images as `output_type` has them, and the thought before those of each prompt ("": none)."""

    images: Any
    thoughts: list[str]


@dataclass(frozen=True, slots=True)
class Scene:
    """The contexts of one prompt: all that was read, that without its text, without its images."""

    whole: ReadContext
    textless: ReadContext
    imageless: ReadContext
    thought: str


class BagelPipeline(DiffusionPipeline):
    """BAGEL's own math over its published checkpoint, batched by an engine that shares forwards.

    Readers extend contexts of keys and values; the transformer is the flow over them. All have the
    same layers. Images of one call have one size.
    """

    model_cpu_offload_seq = "text_reader->image_reader->latent_reader->transformer->vae"

    def __init__(
        self,
        transformer: BagelTransformer,
        text_reader: TextReader,
        image_reader: ImageReader,
        latent_reader: LatentReader,
        vae: AutoencoderKL,
        tokenizer: PreTrainedTokenizerBase,
        scheduler: FlowMatchEulerDiscreteScheduler,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer,
            text_reader=text_reader,
            image_reader=image_reader,
            latent_reader=latent_reader,
            vae=vae,
            tokenizer=tokenizer,
            scheduler=scheduler,
        )
        self.settings = settings = transformer.settings
        self.vae_scale_factor = settings.latent_scale
        self.default_sample_size = settings.latent_side
        self.image_processor = VaeImageProcessor(vae_scale_factor=settings.latent_scale)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, dtype: torch.dtype | None = None
    ) -> "BagelPipeline":
        """Read a published folder; raises ValueError for one that is not whole."""
        folder, dtype = Path(folder), dtype or torch.float32
        tokenizer = Qwen2Tokenizer.from_pretrained(folder)
        ids = tokenizer.convert_tokens_to_ids(list(MARKS))
        if None in ids or tokenizer.unk_token_id in ids:
            raise ValueError(f"{folder}: its tokenizer has not all of {', '.join(MARKS)}")
        settings = BagelSettings.read(folder, (ids[2], ids[3]))
        modules = read_modules(folder, settings, dtype)
        return cls(
            modules.transformer,
            modules.text_reader,
            modules.image_reader,
            modules.latent_reader,
            read_vae(folder, dtype),
            tokenizer,
            FlowMatchEulerDiscreteScheduler(),
        )

    def check_inputs(self, height: int, width: int, num_inference_steps: int) -> None:
        """Raise ValueError for a size that is not made, or for no steps."""
        if height % self.vae_scale_factor or width % self.vae_scale_factor:
            raise ValueError(
                f"height and width must be multiples of {self.vae_scale_factor}, "
                f"not {height} and {width}"
            )
        most = self.vae_scale_factor * self.default_sample_size
        if not 0 < min(height, width) <= max(height, width) <= most:
            raise ValueError(f"height and width must be at most {most}, not {height} and {width}")
        if num_inference_steps < 1:
            raise ValueError(f"num_inference_steps must be at least 1, not {num_inference_steps}")

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str],
        image: Image.Image | list[Image.Image] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 49,
        guidance_scale: float = 4.0,
        image_guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | None = None,
        output_type: str = "pil",
        think: bool = False,
        max_think_tokens: int = MAX_THINK_TOKENS,
        think_temperature: float = 0.0,
        timestep_shift: float = 3.0,
        cfg_interval: tuple[float, float] | None = None,
        cfg_renorm_min: float = 0.0,
        cfg_renorm_type: Renormalisation | None = None,
        contexts: Sequence[Tensor] | None = None,
        prefix_tokens: int = 0,
        thoughts: list[str] | None = None,
    ) -> BagelOutput:
        """Draw images of each prompt, after `image` if there is one.

        Without a size an image is as large as the last of `image`, or as the model makes them.
        `guidance_scale` and `image_guidance_scale` are the model's `cfg_text_scale` and
        `cfg_img_scale`; what is None is as the model's authors have it, for edits and for texts
        alone. `num_inference_steps` counts the steps that are taken: their `num_timesteps` less
        one.

        `contexts`: what was read of each prompt elsewhere, with its thought: keys and values
        [layers, 2, tokens, heads, size], after rotation, of texts alone. `prefix_tokens` of them
        are what guidance moves the image away from. Then nothing is read or thought here, and
        `thoughts` has the thought of each prompt.
        """
        given = [] if image is None else image if isinstance(image, list) else [image]
        prompts = [prompt] if isinstance(prompt, str) else prompt
        device = self.transformer.llm2vae.weight.device
        builder = ContextBuilder(self, self.settings, device)
        given = [builder.fitted(one) for one in given]
        largest = self.vae_scale_factor * self.default_sample_size
        usual = given[-1].size[::-1] if given else (largest, largest)
        height, width = height or usual[0], width or usual[1]
        self.check_inputs(height, width, num_inference_steps)
        for text in prompts:
            check_text(self.tokenizer, text)
        guidance = FlowGuidance(
            guidance_scale,
            image_guidance_scale if image_guidance_scale is not None else 2.0 if given else 1.0,
            cfg_interval or ((0.0, 1.0) if given else (0.4, 1.0)),
            cfg_renorm_type or ("text_channel" if given else "global"),
            cfg_renorm_min,
        )
        if contexts is not None:
            if given:
                raise ValueError("contexts are of texts alone: they cannot have images")
            scenes = self._scenes_read(builder, contexts, prefix_tokens, thoughts)
        elif prefix_tokens or thoughts:
            raise ValueError("prefix_tokens and thoughts go with contexts")
        else:
            thinks = max_think_tokens if think else 0
            scenes = [
                self._scene(builder, text, given, thinks, think_temperature, generator)
                for text in prompts
            ]
        drawn = [scene for scene in scenes for _ in range(num_images_per_prompt)]
        self.scheduler.set_shift(timestep_shift)
        latents = self._flow(drawn, (height, width), num_inference_steps, guidance, generator)
        latents = latents / self.vae.config.scaling_factor + self.vae.config.shift_factor
        pixels = self.vae.decode(latents.to(self.vae.dtype)).sample
        images = self.image_processor.postprocess(pixels, output_type=output_type)
        return BagelOutput(images=images, thoughts=[scene.thought for scene in scenes])

    def _scene(
        self,
        builder: ContextBuilder,
        text: str,
        images: Sequence[Image.Image],
        max_think_tokens: int,
        temperature: float,
        generator: Generator,
    ) -> Scene:
        """Read a prompt; `max_think_tokens`: 0 for no thought."""
        first = builder.empty()
        if max_think_tokens:
            first = builder.text(first, THINKING)
        textless = first
        for image in images:
            textless = builder.image(textless, image, generator)
        whole = builder.text(textless, text)
        imageless = builder.text(first, text) if images else whole
        thought = ""
        if max_think_tokens:
            thought = builder.thought(whole, max_think_tokens, temperature, generator)
            whole = builder.text(whole, thought)
        return Scene(whole, textless, imageless, thought)

    def _scenes_read(
        self,
        builder: ContextBuilder,
        contexts: Sequence[Tensor],
        num_prefix: int,
        thoughts: Sequence[str] | None,
    ) -> list[Scene]:
        """Return the scenes of prompts that were read elsewhere; raises ValueError."""
        read = [builder.given(one) for one in contexts]
        parts = [one.prefix(num_prefix) for one in read]
        said = thoughts or [""] * len(read)
        return [
            Scene(whole, part, whole, thought)
            for whole, part, thought in zip(read, parts, said, strict=True)
        ]

    def _flow(
        self,
        scenes: Sequence[Scene],
        size: tuple[int, int],
        num_steps: int,
        guidance: FlowGuidance,
        generator: Generator,
    ) -> Tensor:
        """Return latents [n, channels, height, width], an image of each scene, all of one size."""
        settings, device = self.settings, self.transformer.llm2vae.weight.device
        height, width = (side // settings.latent_scale for side in size)
        cells = cells_of(height, width, settings.latent_side).to(device)
        shape = height * width, settings.part_size
        drawn = [torch.randn(shape, generator=generator) for _ in scenes]
        latents = torch.stack(drawn).to(device)
        times = torch.linspace(1, 0, num_steps + 1)[:-1]
        self.scheduler.set_timesteps(sigmas=np.asarray(times), device=device)
        for timestep, sigma in zip(
            self.scheduler.timesteps, self.scheduler.sigmas.clone(), strict=False
        ):
            is_guided = guidance.acts_at(sigma)
            kinds = [_contexts(scene, guidance, is_guided) for scene in scenes]
            rows = [
                FlowRow(image, cells, one.keys_and_values[0], one.position)
                for image, contexts in zip(latents, kinds, strict=True)
                for one in contexts
            ]
            made = self.transformer(rows, timestep=sigma.expand(len(rows)).to(device))
            velocities = _moved(iter(made), kinds, guidance)
            latents = self.scheduler.step(
                torch.stack(list(velocities)), timestep, latents, return_dict=False
            )[0]
        patch = settings.latent_patch
        sides = height * patch, width * patch
        return torch.stack([joined_parts(one, *sides, patch) for one in latents])


def _contexts(scene: Scene, guidance: FlowGuidance, is_guided: bool) -> list[ReadContext]:
    """Return the contexts of a step: the whole one, and those that guidance moves it away from."""
    if not is_guided:
        return [scene.whole]
    without = [scene.textless, scene.imageless] if guidance.has_images else [scene.textless]
    return [scene.whole, *without]


def _moved(
    velocities: Iterator[Tensor], kinds: Sequence[Sequence[object]], guidance: FlowGuidance
) -> Iterator[Tensor]:
    """Yield the velocity of each image, from those of its contexts."""
    for contexts in kinds:
        own = [next(velocities) for _ in contexts]
        if len(own) == 1:
            yield own[0]
        else:
            yield guidance.moved(own[0], own[1], own[2] if len(own) > 2 else None)
