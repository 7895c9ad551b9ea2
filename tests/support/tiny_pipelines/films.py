"""Tiny pipelines of videos with sound, with random weights: LTX-2 and Kandinsky 6."""

from collections.abc import Mapping
from typing import Any

from diffusers import (
    AutoencoderKLHunyuanVideo,
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    Kandinsky6TI2VAPipeline,
    Kandinsky6Transformer3DModel,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
    MMAudioVAE,
    MMAudioVocoder,
)
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder
from support.tiny_pipelines.texts import SIZES, make_any_tokenizer, make_text_encoder
from support.tiny_pipelines.video_sizes import VIDEO_SIZES
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE

ROPE: Mapping[str, Any] = {"rope_type": "split", "rope_double_precision": False}
# Of LTX-2's calls, whose own default leaves out block 28 of the real model.
GUIDED: Mapping[str, Any] = {"spatio_temporal_guidance_blocks": [1]}
FILM_RATE = 16_000
KANDINSKY_RATE = 8000
LATENT = 4


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
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"  # in its folder, too
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
            num_layers=2,
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
            patch_size=4,
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


def kandinsky_6() -> Kandinsky6TI2VAPipeline:
    """Return Kandinsky 6, with frames and audio."""
    tokenizer = make_any_tokenizer("Qwen2TokenizerFast")
    mel_bins = 8
    return Kandinsky6TI2VAPipeline(
        transformer=Kandinsky6Transformer3DModel(
            in_visual_dim=LATENT,
            out_visual_dim=LATENT,
            in_text_dim=TEXT_SIZE,
            in_text_dim2=TEXT_SIZE,
            time_dim=16,
            model_dim=32,
            ff_dim=32,
            num_text_blocks=1,
            num_visual_blocks=2,
            axes_dims=(4, 6, 6),
            in_audio_dim=LATENT,
            out_audio_dim=LATENT,
            visual_token_type_num_embeddings=2,
        ).eval(),
        vae=AutoencoderKLHunyuanVideo(**VIDEO_SIZES["AutoencoderKLHunyuanVideo"]).eval(),
        text_encoder=make_text_encoder("Qwen2_5_VLForConditionalGeneration"),
        tokenizer=Qwen2_5_VLProcessor(
            image_processor=Qwen2VLImageProcessor(),
            tokenizer=tokenizer,
            video_processor=Qwen2VLVideoProcessor(),
            chat_template=tokenizer.chat_template,
        ),
        text_encoder_2=make_text_encoder("CLIPTextModel"),
        tokenizer_2=make_any_tokenizer("CLIPTokenizer"),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        audio_vae=MMAudioVAE(
            mel_bins=mel_bins,
            latent_channels=LATENT,
            hidden_channels=16,
            layers_per_block=1,
            sample_rate=KANDINSKY_RATE,
            n_fft=64,
            hop_length=16,
        ).eval(),
        vocoder=MMAudioVocoder(
            num_mels=mel_bins,
            upsample_initial_channel=32,
            upsample_rates=(4, 4),
            upsample_kernel_sizes=(8, 8),
            resblock_kernel_sizes=(3,),
            resblock_dilation_sizes=((1, 3, 5),),
        ).eval(),
    )
