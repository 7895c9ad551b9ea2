"""Tiny pipelines of audio, and LTX-2, with random weights: each by a function of its own."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers import (
    AceStepPipeline,
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    AutoencoderOobleck,
    AutoencoderSAME,
    EDMDPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    LongCatAudioDiTPipeline,
    LongCatAudioDiTTransformer,
    LongCatAudioDiTVae,
    LTX2ImageToVideoPipeline,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
    StableAudio3DiTModel,
    StableAudio3DurationEmbedder,
    StableAudio3Pipeline,
    StableAudioDiTModel,
    StableAudioPipeline,
)
from diffusers.models.transformers.ace_step_transformer import AceStepTransformer1DModel
from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder
from diffusers.pipelines.stable_audio.modeling_stable_audio import StableAudioProjectionModel
from support.tiny_pipelines.texts import SIZES, make_any_tokenizer, make_text_encoder
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    T5GemmaConfig,
    T5GemmaEncoderModel,
)

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE

RATE = 8000
LATENT = 8
ROPE: Mapping[str, Any] = {"rope_type": "split", "rope_double_precision": False}


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


def _t5_gemma() -> T5GemmaEncoderModel:
    config = T5GemmaConfig(
        encoder=dict(SIZES), decoder=dict(SIZES), is_encoder_decoder=False, **{"dropout_rate": 0}
    )
    return T5GemmaEncoderModel(config).eval()


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
    with torch.no_grad():  # it begins as silence
        for weight in vae.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return made(
        vae=vae,
        text_encoder=_t5_gemma(),
        tokenizer=make_any_tokenizer("GemmaTokenizer"),
        duration_embedder=StableAudio3DurationEmbedder(output_dim=TEXT_SIZE, fourier_dim=16).eval(),
        transformer=StableAudio3DiTModel(
            io_channels=LATENT,
            embed_dim=64,
            depth=2,
            num_heads=2,
            cond_token_dim=TEXT_SIZE,
            global_cond_dim=TEXT_SIZE,
            local_add_cond_dim=LATENT + 1,
            timestep_features_dim=16,
            num_memory_tokens=2,
        ).eval(),
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


def ltx2(made: type = LTX2Pipeline) -> Any:
    """Return LTX-2, with frames and audio."""
    width, num_layers = TEXT_SIZE, SIZES["num_hidden_layers"]
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    text = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=dict(SIZES), vision_config=vision, mm_tokens_per_image=4)
    )
    tokenizer = make_any_tokenizer("GemmaTokenizer")
    tokenizer.padding_side = "left"
    return made(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=text.eval(),
        tokenizer=tokenizer,
        connectors=LTX2TextConnectors(
            caption_channels=width,
            text_proj_in_factor=num_layers + 1,
            video_connector_num_attention_heads=4,
            video_connector_attention_head_dim=width // 4,
            video_connector_num_layers=1,
            video_connector_num_learnable_registers=None,
            audio_connector_num_attention_heads=4,
            audio_connector_attention_head_dim=width // 4,
            audio_connector_num_layers=1,
            audio_connector_num_learnable_registers=None,
            connector_rope_base_seq_len=32,
            rope_theta=10000.0,
            causal_temporal_positioning=False,
            **ROPE,
        ).eval(),
        transformer=LTX2VideoTransformer3DModel(
            in_channels=4,
            out_channels=4,
            patch_size=1,
            patch_size_t=1,
            num_attention_heads=2,
            attention_head_dim=8,
            cross_attention_dim=16,
            audio_in_channels=4,
            audio_out_channels=4,
            audio_num_attention_heads=2,
            audio_attention_head_dim=4,
            audio_cross_attention_dim=8,
            num_layers=29,  # spatio-temporal guidance leaves out block 28
            qk_norm="rms_norm_across_heads",
            caption_channels=width,
            **ROPE,
        ).eval(),
        vae=AutoencoderKLLTX2Video(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(8,),
            decoder_block_out_channels=(8,),
            layers_per_block=(1,),
            decoder_layers_per_block=(1, 1),
            spatio_temporal_scaling=(True,),
            decoder_spatio_temporal_scaling=(True,),
            decoder_inject_noise=(False, False),
            downsample_type=("spatial",),
            upsample_residual=(False,),
            upsample_factor=(1,),
            timestep_conditioning=False,
            patch_size=1,
            patch_size_t=1,
            encoder_causal=True,
            decoder_causal=False,
        ).eval(),
        audio_vae=AutoencoderKLLTX2Audio(
            base_channels=4,
            output_channels=2,
            ch_mult=(1,),
            num_res_blocks=1,
            attn_resolutions=None,
            in_channels=2,
            resolution=32,
            latent_channels=2,
            norm_type="pixel",
            causality_axis="height",
            dropout=0.0,
            mid_block_add_attention=False,
            sample_rate=16000,
            mel_hop_length=160,
            is_causal=True,
            mel_bins=8,
        ).eval(),
        vocoder=LTX2Vocoder(
            in_channels=16,
            hidden_channels=32,
            out_channels=2,
            upsample_kernel_sizes=[20, 32],
            upsample_factors=[10, 16],
            resnet_kernel_sizes=[3],
            resnet_dilations=[[1, 3, 5]],
            leaky_relu_negative_slope=0.1,
            output_sampling_rate=16000,
        ).eval(),
    )


MAKERS: Mapping[str, Callable[[], Any]] = {
    "stable-audio": stable_audio,
    "stable-audio-3": stable_audio_3,
    "ace-step": ace_step,
    "longcat": longcat,
    "ltx2": ltx2,
    "ltx2-image": lambda: ltx2(LTX2ImageToVideoPipeline),
}


def make_sound(name: str) -> Any:
    """Return a tiny pipeline by its name here, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = MAKERS[name]()
    made.set_progress_bar_config(disable=True)
    return made
