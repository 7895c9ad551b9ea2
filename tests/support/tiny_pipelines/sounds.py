"""Tiny pipelines of audio with random weights: each by a function of its own."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from diffusers import (
    AceStepPipeline,
    AutoencoderOobleck,
    AutoencoderSAME,
    EDMDPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    Kandinsky6TI2VAPipeline,
    LongCatAudioDiTPipeline,
    LongCatAudioDiTTransformer,
    LongCatAudioDiTVae,
    LTX2ConditionPipeline,
    LTX2ImageToVideoPipeline,
    LTX2Pipeline,
    StableAudio3AudioToAudioPipeline,
    StableAudio3DiTModel,
    StableAudio3DurationEmbedder,
    StableAudio3InpaintPipeline,
    StableAudio3Pipeline,
    StableAudioDiTModel,
    StableAudioPipeline,
)
from diffusers.models.transformers.ace_step_transformer import AceStepTransformer1DModel
from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder
from diffusers.pipelines.stable_audio.modeling_stable_audio import StableAudioProjectionModel
from support.tiny_pipelines.films import kandinsky_6, ltx2
from support.tiny_pipelines.texts import make_any_tokenizer, make_text_encoder, t5_gemma

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE

LTX_2 = (LTX2Pipeline, LTX2ImageToVideoPipeline, LTX2ConditionPipeline)
STABLE_AUDIO_3 = (
    StableAudio3Pipeline,
    StableAudio3AudioToAudioPipeline,
    StableAudio3InpaintPipeline,
)
RATE = 8000
LATENT = 8


def oobleck() -> AutoencoderOobleck:
    """Return a VAE of stereo: five latents a second."""
    return AutoencoderOobleck(
        encoder_hidden_size=2 * LATENT,
        downsampling_ratios=[10, 10, 16],
        channel_multiples=[1, 1, 1],
        decoder_channels=8,
        decoder_input_channels=LATENT,
        sampling_rate=RATE,
    ).eval()


def stable_audio() -> StableAudioPipeline:
    """Return Stable Audio of 6 s."""
    return StableAudioPipeline(
        vae=oobleck(),
        text_encoder=make_text_encoder("T5EncoderModel"),
        projection_model=StableAudioProjectionModel(TEXT_SIZE, TEXT_SIZE, 0, 32).eval(),
        tokenizer=make_any_tokenizer("T5TokenizerFast"),
        transformer=StableAudioDiTModel(
            sample_size=30,
            in_channels=LATENT,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            num_key_value_attention_heads=2,
            out_channels=LATENT,
            cross_attention_dim=TEXT_SIZE,
            time_proj_dim=16,
            global_states_input_dim=2 * TEXT_SIZE,
            cross_attention_input_dim=TEXT_SIZE,
        ).eval(),
        scheduler=EDMDPMSolverMultistepScheduler(sigma_min=0.001, sigma_max=0.01),
    )


def stable_audio_3(made: type = StableAudio3Pipeline) -> Any:
    """Return Stable Audio 3, which re-noises with the request's generator."""
    vae = AutoencoderSAME(
        patch_size=16,
        encoder_channels=32,
        encoder_c_mults=(1,),
        encoder_strides=(4,),
        encoder_transformer_depths=(1,),
        latent_dim=LATENT,
        dim_heads=32,
        sampling_rate=RATE,
    ).eval()
    transformer = StableAudio3DiTModel(
        io_channels=LATENT,
        embed_dim=64,
        depth=2,
        num_heads=2,
        cond_token_dim=TEXT_SIZE,
        global_cond_dim=TEXT_SIZE,
        local_add_cond_dim=LATENT + 1,
        timestep_features_dim=16,
        num_memory_tokens=2,
    ).eval()
    with torch.no_grad():  # it begins as silence, and blind to what is repainted
        for weight in (*vae.parameters(), *transformer.parameters()):
            if not weight.any():
                weight.normal_(std=0.1)
    return made(
        vae=vae,
        text_encoder=t5_gemma(),
        tokenizer=make_any_tokenizer("GemmaTokenizer"),
        duration_embedder=StableAudio3DurationEmbedder(output_dim=TEXT_SIZE, fourier_dim=16).eval(),
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(stochastic_sampling=True),
    )


def ace_step() -> AceStepPipeline:
    heads = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 16,
    }
    condition = AceStepConditionEncoder(
        **heads,
        text_hidden_dim=TEXT_SIZE,
        timbre_hidden_dim=LATENT,
        num_lyric_encoder_hidden_layers=1,
        num_timbre_encoder_hidden_layers=1,
    )
    torch.nn.init.normal_(condition.silence_latent)
    return AceStepPipeline(
        vae=oobleck(),
        text_encoder=make_text_encoder("Qwen3Model"),
        tokenizer=make_any_tokenizer("Qwen2TokenizerFast"),
        transformer=AceStepTransformer1DModel(
            **heads,
            num_hidden_layers=2,
            in_channels=3 * LATENT,
            audio_acoustic_hidden_dim=LATENT,
        ).eval(),
        condition_encoder=condition.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )


def longcat() -> LongCatAudioDiTPipeline:
    """Return LongCat-AudioDiT."""
    return LongCatAudioDiTPipeline(
        vae=LongCatAudioDiTVae(
            channels=8,
            c_mults=[1, 2],
            strides=[2, 4],
            latent_dim=LATENT,
            encoder_latent_dim=2 * LATENT,
            downsampling_ratio=8,
            sample_rate=RATE,
        ).eval(),
        text_encoder=make_text_encoder("UMT5EncoderModel"),
        tokenizer=make_any_tokenizer("T5TokenizerFast"),
        transformer=LongCatAudioDiTTransformer(
            dit_dim=64, dit_depth=2, dit_heads=2, dit_text_dim=TEXT_SIZE, latent_dim=LATENT
        ).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, invert_sigmas=False),
    )


# By name, and by the class that the census builds.
MAKERS: Mapping[str, Callable[..., Any]] = {
    "stable-audio": stable_audio,
    "stable-audio-3": stable_audio_3,
    "ace-step": ace_step,
    "longcat": longcat,
    "ltx2": ltx2,
    "kandinsky-6": kandinsky_6,
}
CLASSES: Mapping[type, Callable[[], Any]] = {
    AceStepPipeline: ace_step,
    Kandinsky6TI2VAPipeline: kandinsky_6,
    LongCatAudioDiTPipeline: longcat,
    **{made: partial(ltx2, made) for made in LTX_2},
    **{made: partial(stable_audio_3, made) for made in STABLE_AUDIO_3},
}


def make_sound(name: str) -> Any:
    """Return a tiny pipeline by its name here, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = MAKERS[name]()
    made.set_progress_bar_config(disable=True)
    return made
