"""A tiny DeepFloyd IF, for the test of a pipeline that the product knows nothing of."""

from diffusers import DDPMScheduler, IFPipeline, UNet2DConditionModel

from omnistage.stages.diffusion.checkpoint.parts import TEXT_SIZE, make_t5, make_tokenizer


def make_tiny_if() -> IFPipeline:
    """Pixels and no latents, a U-Net, a scheduler that draws noise at each step."""
    unet = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        norm_num_groups=4,
        in_channels=3,
        out_channels=6,
        cross_attention_dim=TEXT_SIZE,
        encoder_hid_dim=TEXT_SIZE,
        attention_head_dim=8,
        addition_embed_type="text",
        addition_embed_type_num_heads=2,
        cross_attention_norm="group_norm",
        resnet_time_scale_shift="scale_shift",
        act_fn="gelu",
    )
    return IFPipeline(
        tokenizer=make_tokenizer(),
        text_encoder=make_t5(),
        unet=unet.eval(),
        # of 1000 steps the first would make 100 times as much of each rounding
        scheduler=DDPMScheduler(num_train_timesteps=100, variance_type="learned_range"),
        safety_checker=None,
        feature_extractor=None,
        watermarker=None,
        requires_safety_checker=False,
    )
