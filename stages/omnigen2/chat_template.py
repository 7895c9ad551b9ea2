"""OmniGen2's conversations, as its code writes them: images are numbered from 1 on."""

from omnistage.stages.omnigen2.prompt import SYSTEM

SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
CHAT_TEMPLATE = f"""\
{{%- set seen = namespace(images=0) -%}}
{{%- if messages[0].role != 'system' -%}}<|im_start|>system
{SYSTEM}<|im_end|>
{{% endif -%}}
{{%- for message in messages -%}}
<|im_start|>{{{{ message.role }}}}
{{% if message.content is string %}}{{{{ message.content }}}}\
{{% elif message.content %}}{{% for part in message.content -%}}
{{%- if part.type in ('image', 'image_url') -%}}
{{%- set seen.images = seen.images + 1 -%}}<img{{{{ seen.images }}}}>: {SEEN}
{{%- elif part.type == 'text' -%}}{{{{ part.text }}}}
{{%- endif -%}}{{% endfor %}}{{% endif %}}<|im_end|>
{{% endfor -%}}
{{%- if add_generation_prompt -%}}<|im_start|>assistant
{{% endif -%}}"""
