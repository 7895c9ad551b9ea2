"""DreamID-Omni as a pipeline: people of given faces, who speak with given voices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan, DiffusionPipeline, UniPCMultistepScheduler
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from diffusers.utils import BaseOutput
from diffusers.video_processor import VideoProcessor
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, UMT5EncoderModel

from omnistage.stages.dreamid_omni.audio_vae import HOP, RATE_HZ, AudioVae
from omnistage.stages.dreamid_omni.checkpoint import weights
from omnistage.stages.dreamid_omni.checkpoint.layout import TOKENIZER, check_files
from omnistage.stages.dreamid_omni.guidance import Scales
from omnistage.stages.dreamid_omni.positions import REFERENCE_FRAME
from omnistage.stages.dreamid_omni.references import (
    FACES,
    MAX_REFERENCES,
    VOICES,
    check_number,
    face_pixels,
    joined_latents,
    voice_samples,
)
from omnistage.stages.dreamid_omni.transformer import PATCH, FusionTransformer
from omnistage.stages.worker.failure import RequestError

FPS = 24.0
TEXT_LENGTH = 512  # tokens of a text; those that it lacks are zeros, which the denoiser sees
SAMPLES = 2 * HOP  # of a latent of audio
SHIFT = 5.0
FIRST_SIGMA = 0.999  # noise that a video begins with, before the shift
NEGATIVE, AUDIO_NEGATIVE = (
    "jitter, bad hands, blur, distortion",
    "robotic, muffled, echo, distorted",
)


@dataclass
class DreamIDOmniOutput(BaseOutput):
    """Frames as `output_type` has them, and `audio`: float32 [videos, 1, samples] at 16 kHz."""

    frames: Any
    audio: Tensor


@dataclass(frozen=True, slots=True)
class EncodedReferences:
    """Latents of faces [1, channels, faces, height, width] and voices [1, latents, channels]."""

    faces: Tensor
    voices: Tensor
    voice_lengths: tuple[int, ...]

    @property
    def num_faces(self) -> int:
        """Return how many latents are faces."""
        return self.faces.shape[2]


class DreamIDOmniPipeline(DiffusionPipeline):
    """The published code's math over its folder. A step is one call of four rows for each video.

    They are all together, without the text, without the faces, without the voices.
    """

    model_cpu_offload_seq = "text_encoder->transformer->vae->audio_vae->vocoder"
    media_limits: Mapping[str, int] = {"image": MAX_REFERENCES, VOICES: MAX_REFERENCES}
    audio_sample_rate = RATE_HZ

    def __init__(
        self,
        transformer: FusionTransformer,
        vae: AutoencoderKLWan,
        audio_vae: AudioVae,
        vocoder: Any,
        text_encoder: UMT5EncoderModel,
        tokenizer: PreTrainedTokenizerBase,
        scheduler: UniPCMultistepScheduler,
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer,
            vae=vae,
            audio_vae=audio_vae,
            vocoder=vocoder,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            scheduler=scheduler,
        )
        self.vae_scale_factor_spatial = vae.config.scale_factor_spatial
        self.vae_scale_factor_temporal = vae.config.scale_factor_temporal
        self.side_multiple = vae.config.scale_factor_spatial * PATCH[1]
        self.video_processor = VideoProcessor(vae_scale_factor=self.vae_scale_factor_spatial)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, dtype: torch.dtype | None = None
    ) -> "DreamIDOmniPipeline":
        """Read a folder as the authors' program downloads it; ValueError if it is not whole."""
        folder, dtype = Path(folder), dtype or torch.float32
        check_files(folder)
        return cls(
            weights.read_transformer(folder, dtype),
            weights.read_video_vae(folder, dtype),
            weights.read_audio_vae(folder, dtype),
            weights.read_vocoder(folder, dtype),
            weights.read_text_encoder(folder, dtype),
            AutoTokenizer.from_pretrained(folder / TOKENIZER),
            UniPCMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT
            ),
        )

    def check_inputs(self, height: int, width: int, num_frames: int, frame_rate: float) -> None:
        """Raise for what is not made: ValueError, or RequestError with the field."""
        if height % self.side_multiple or width % self.side_multiple:
            raise ValueError(
                f"height and width must be multiples of {self.side_multiple}, "
                f"not {height} and {width}"
            )
        step = self.vae_scale_factor_temporal
        most = (REFERENCE_FRAME - 1) * step + 1
        if num_frames % step != 1 or not 1 < num_frames <= most:
            raise RequestError(
                400,
                f"must be a multiple of {step} and one, up to {most}, not {num_frames}",
                param="num_frames",
                code="invalid_value",
            )
        if frame_rate != FPS:
            message = f"must be {FPS:g}: frames and audio are made for it"
            raise RequestError(400, message, param="fps", code="invalid_value")

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str],
        image: Image.Image | list[Image.Image],
        reference_audios: list[Tensor],
        negative_prompt: str | list[str] = NEGATIVE,
        audio_negative_prompt: str = AUDIO_NEGATIVE,
        height: int = 704,
        width: int = 1280,
        num_frames: int = 121,
        frame_rate: float = FPS,
        num_inference_steps: int = 50,
        guidance_scale: float = 3.0,
        image_guidance_scale: float = 1.5,
        audio_guidance_scale: float = 4.0,
        reference_audio_guidance_scale: float = 2.0,
        num_videos_per_prompt: int = 1,
        generator: torch.Generator | None = None,
        output_type: str = "pil",
    ) -> DreamIDOmniOutput:
        """Make videos with their audio of each prompt.

        `image`: 1 or 2 faces; `reference_audios`: 1 or 2 voices, float32 [channels, samples] at 16
        kHz. Scales in their order are the authors' `video_cfg_scale`, `video_ref_cfg_scale`,
        `audio_cfg_scale` and `audio_ref_cfg_scale`.
        """
        self.check_inputs(height, width, num_frames, frame_rate)
        faces = image if isinstance(image, list) else [image]
        check_number(faces, FACES)
        check_number(reference_audios, VOICES)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        without = [negative_prompt] if isinstance(negative_prompt, str) else negative_prompt
        references = self._references(faces, reference_audios, height, width)
        texts = self._texts([*prompts, without[0], audio_negative_prompt])
        own = texts[: len(prompts)].repeat_interleave(num_videos_per_prompt, dim=0)
        video_texts, audio_texts = (
            torch.cat([own, one.expand_as(own), own, own]) for one in texts[-2:, None]
        )
        shape = (
            self.vae.config.z_dim,
            (num_frames - 1) // self.vae_scale_factor_temporal + 1,
            height // self.vae_scale_factor_spatial,
            width // self.vae_scale_factor_spatial,
        )
        length = int(num_frames / FPS * RATE_HZ / SAMPLES)
        video, audio = self._noise(len(own), shape, length, references, generator)
        scales = Scales(
            guidance_scale,
            image_guidance_scale,
            audio_guidance_scale,
            reference_audio_guidance_scale,
        )
        times = np.linspace(FIRST_SIGMA, 0, num_inference_steps + 1)[:-1]
        self.scheduler.set_timesteps(sigmas=times, device=video.device)
        for timestep in self.scheduler.timesteps:
            made = self.transformer(
                video=_beside(video, references.faces, without=2),
                audio=_beside(audio, references.voices, without=3),
                timestep=timestep.expand(4 * len(own)),
                video_text=video_texts,
                audio_text=audio_texts,
                num_faces=references.num_faces,
                voice_lengths=references.voice_lengths,
            )
            moved = scales.moved(made[0][:, :, : shape[1]], made[1][:, :length])
            # The solver has numbers of its own for time alone, so both go through one.
            whole = self.scheduler.step(
                _flat(*moved), timestep, _flat(video, audio), return_dict=False
            )[0]
            video = whole[:, : video[0].numel()].view_as(video)
            audio = whole[:, video[0].numel() :].view_as(audio)
        return self._decoded(video, audio, output_type)

    def _references(
        self, faces: Sequence[Image.Image], voices: Sequence[Tensor], height: int, width: int
    ) -> EncodedReferences:
        device, dtype = self.vae.device, self.vae.dtype
        means, deviations = self._statistics
        pixels = [face_pixels(face, height, width) for face in faces]
        samples = [voice_samples(voice) for voice in voices]
        seen = [
            (self.vae.encode(one.to(device, dtype)).latent_dist.mode() - means) / deviations
            for one in pixels
        ]
        heard = [self.audio_vae.encode(one.to(device)).transpose(1, 2) for one in samples]
        return EncodedReferences(torch.cat(seen, dim=2), *joined_latents(heard, axis=1))

    def _texts(self, texts: Sequence[str]) -> Tensor:
        """Return [texts, TEXT_LENGTH, size], with zeros behind each text."""
        tokens = self.tokenizer(
            [prompt_clean(text) for text in texts],
            padding="max_length",
            max_length=TEXT_LENGTH,
            truncation=True,
            return_tensors="pt",
        )
        mask = tokens.attention_mask.to(self.text_encoder.device)
        states = self.text_encoder(tokens.input_ids.to(mask.device), mask).last_hidden_state
        return states * mask[..., None]

    def _noise(
        self,
        number: int,
        shape: tuple[int, int, int, int],
        length: int,
        references: EncodedReferences,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """Return noise of videos and of audio, each of a generator in the state of the given one.

        The published code draws for references, too.
        """
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        other = torch.Generator().set_state(generator.get_state())
        channels, frames, *sides = shape
        drawn = channels, frames + references.num_faces, *sides
        heard = length + references.voices.shape[1], references.voices.shape[2]
        video = [torch.randn(drawn, generator=generator)[:, :frames] for _ in range(number)]
        audio = [torch.randn(heard, generator=other)[:length] for _ in range(number)]
        device = references.faces.device
        return torch.stack(video).to(device), torch.stack(audio).to(device)

    def _decoded(self, video: Tensor, audio: Tensor, output_type: str) -> DreamIDOmniOutput:
        means, deviations = self._statistics
        latents = video.to(self.vae.dtype) * deviations + means
        pixels = self.vae.decode(latents, return_dict=False)[0]
        mels = self.audio_vae.decode(audio.to(self.audio_vae.dtype).transpose(1, 2))
        samples = self.vocoder(mels)
        frames = self.video_processor.postprocess_video(pixels, output_type=output_type)
        return DreamIDOmniOutput(frames=frames, audio=samples.float())

    @property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of latents, [1, channels, 1, 1, 1]."""
        config, like = self.vae.config, next(self.vae.parameters())
        numbers = torch.tensor([config.latents_mean, config.latents_std]).to(like)
        means, deviations = numbers.view(2, 1, -1, 1, 1, 1)
        return means, deviations


def _beside(latents: Tensor, references: Tensor, without: int) -> Tensor:
    """Return the four rows of each video with references behind them; one row has none: zeros."""
    axis = 2 if latents.ndim == 5 else 1
    own = references.expand(len(latents), *references.shape[1:])
    rows = [torch.cat([latents.to(own), own], dim=axis)] * 4
    rows[without] = torch.cat([latents.to(own), torch.zeros_like(own)], dim=axis)
    return torch.cat(rows)


def _flat(video: Tensor, audio: Tensor) -> Tensor:
    return torch.cat([video.flatten(1), audio.flatten(1)], dim=1)
