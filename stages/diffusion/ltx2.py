"""LTX-2 in two passes: a video of half its size, its latents enlarged, and a few more steps."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LTX2ConditionPipeline
from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from diffusers.pipelines.ltx2.utils import STAGE_2_DISTILLED_SIGMA_VALUES

from omnistage.stages.diffusion.engine.pass_adapters import PassAdapter

UPSAMPLER = "latent_upsampler"
SIDE = 64  # sides are multiples of this: those of a pass, of 32
SIGMAS = STAGE_2_DISTILLED_SIGMA_VALUES
# The second pass has no guidance, as its LoRA is distilled.
UNGUIDED = {
    "guidance_scale": 1.0,
    "stg_scale": 0.0,
    "modality_scale": 1.0,
    "audio_guidance_scale": 1.0,
    "audio_stg_scale": 0.0,
    "audio_modality_scale": 1.0,
}
OnStep = Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]]


class LTX2TwoStagePipeline(LTX2ConditionPipeline):  # type: ignore[misc]  # Diffusers has no types
    """LTX-2's recipe of two passes as one pipeline, for a folder of `LTX2Pipeline`.

    Sides are those of the result, multiples of 64. Conditions count in both.
    """

    scheduler: Any
    adapter: PassAdapter | None = None  # of the second pass

    def __init__(
        self,
        scheduler: Any,
        vae: Any,
        audio_vae: Any,
        text_encoder: Any,
        tokenizer: Any,
        connectors: Any,
        transformer: Any,
        vocoder: Any,
        latent_upsampler: LTX2LatentUpsamplerModel,
        audio_scheduler: Any = None,
        processor: Any = None,
        prompt_enhancer: Any = None,
        duration_head: Any = None,
    ) -> None:
        super().__init__(
            scheduler,
            vae,
            audio_vae,
            text_encoder,
            tokenizer,
            connectors,
            transformer,
            vocoder,
            audio_scheduler,
            processor,
            prompt_enhancer,
            duration_head,
        )
        self.register_modules(latent_upsampler=latent_upsampler)
        self._num_others = 0  # steps of the other pass

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        dtype: torch.dtype | None = None,
        lora: str | None = None,
        **components: Any,
    ) -> Self:
        """Load a folder of LTX-2 that has a `latent_upsampler` beside the pipeline's components.

        `lora`: the file of the second pass's distilled adapter. Raises ValueError for an argument
        that is not taken, and if there is no upsampler.
        """
        known = inspect.signature(cls.__init__).parameters
        for name in [name for name in components if name not in known]:
            if components.pop(name) is not None:
                raise ValueError(f"custom_pipeline_args.{name}: no argument; its argument: lora")
        if UPSAMPLER not in components:
            if not (Path(folder) / UPSAMPLER).is_dir():
                raise ValueError(f"{folder} has no folder {UPSAMPLER}, which the second pass needs")
            components[UPSAMPLER] = LTX2LatentUpsamplerModel.from_pretrained(
                folder, subfolder=UPSAMPLER, torch_dtype=dtype
            )
        made: Self = super().from_pretrained(folder, dtype=dtype, **components)
        if lora is not None:
            made.adapter = PassAdapter.load(made, lora)
        return made

    @property
    def num_timesteps(self) -> int:
        """The steps of both passes."""
        return self._num_others + int(self._num_timesteps)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        conditions: LTX2VideoCondition | list[LTX2VideoCondition] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int = 1024,
        width: int = 1536,
        num_frames: int = 121,
        frame_rate: float = 24.0,
        num_inference_steps: int = 40,
        guidance_scale: float = 4.0,
        stg_scale: float = 1.0,
        modality_scale: float = 3.0,
        guidance_rescale: float = 0.7,
        audio_guidance_scale: float = 7.0,
        spatio_temporal_guidance_blocks: Sequence[int] = (28,),
        num_videos_per_prompt: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        output_type: str = "pil",
        callback_on_step_end: OnStep | None = None,
        max_sequence_length: int = 1024,
    ) -> Any:
        """Return frames and audio, as LTX2ConditionPipeline does; arguments are those of its call.

        Guidance is the first pass's.
        """
        for name, side in (("height", height), ("width", width)):
            if side % SIDE:
                raise ValueError(f"`{name}` must be a multiple of {SIDE}, not {side}")
        both = {
            "prompt": prompt,
            "conditions": conditions,
            "negative_prompt": negative_prompt,
            "num_frames": num_frames,
            "frame_rate": frame_rate,
            "num_videos_per_prompt": num_videos_per_prompt,
            "generator": generator,
            "max_sequence_length": max_sequence_length,
        }
        self._num_others = len(SIGMAS)
        video, audio = super().__call__(
            **both,
            height=height // 2,
            width=width // 2,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            stg_scale=stg_scale,
            modality_scale=modality_scale,
            guidance_rescale=guidance_rescale,
            audio_guidance_scale=audio_guidance_scale,
            spatio_temporal_guidance_blocks=list(spatio_temporal_guidance_blocks),
            callback_on_step_end=callback_on_step_end,
            output_type="latent",
            return_dict=False,
        )
        latents = self.latent_upsampler(video.to(self.latent_upsampler.dtype))
        with self._second_pass():
            second = {
                **both,
                **UNGUIDED,
                "height": height,
                "width": width,
                "latents": latents,
                "audio_latents": audio,
                "sigmas": SIGMAS,
                "noise_scale": SIGMAS[0],
                "num_inference_steps": len(SIGMAS),
                "callback_on_step_end": self._counted(callback_on_step_end),
                "output_type": output_type,
            }
            return super().__call__(**second)

    @contextmanager
    def _second_pass(self) -> Any:
        """Take the sigmas as they are, and the adapter."""
        first = self.scheduler
        self._num_others = self._num_timesteps
        self.scheduler = FlowMatchEulerDiscreteScheduler.from_config(
            first.config, use_dynamic_shifting=False, shift_terminal=None
        )
        try:
            with nullcontext() if self.adapter is None else self.adapter.used():
                yield
        finally:
            self.scheduler = first

    def _counted(self, on_step: OnStep | None) -> OnStep | None:
        """Return a callback that counts on from the first pass."""
        if on_step is None:
            return None
        before = self._num_others

        def count(running: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            return on_step(running, before + step, time, tensors)

        return count
