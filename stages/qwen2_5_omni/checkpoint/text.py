"""Qwen2.5-Omni's special tokens, and its chat template."""

SPECIAL_TOKENS = (  # of the published one from id 151643 on
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>"),
    *("<|audio_eos|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>", "<|VIDEO|>"),
)
MORE_TOKENS = (  # and these follow
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
)
MEDIA_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
PROCESSOR_CLASS = "Qwen2_5OmniProcessor"

# It renders as the published one does: a chat without a system turn gets one, and tools are not
# told to the model.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}\
{% elif message.content %}{% for part in message.content -%}
{%- if part.type in ('image', 'image_url') -%}<|vision_bos|><|IMAGE|><|vision_eos|>
{%- elif part.type in ('audio', 'audio_url', 'input_audio') -%}\
<|audio_bos|><|AUDIO|><|audio_eos|>
{%- elif part.type in ('video', 'video_url') -%}<|vision_bos|><|VIDEO|><|vision_eos|>
{%- elif part.type == 'text' -%}{{ part.text }}
{%- endif -%}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
