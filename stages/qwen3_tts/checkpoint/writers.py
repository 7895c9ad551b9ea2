"""Writers of `omnistage tiny` for each model: its type, and its size in the real world."""

from functools import partial

from omnistage.stages.qwen3_tts.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_tts.checkpoint.tiny import write_tiny_checkpoint

write_custom_voice = partial(write_tiny_checkpoint, model_type="custom_voice", model_size="1b7")
write_small_custom_voice = partial(
    write_tiny_checkpoint, model_type="custom_voice", model_size="0b6"
)
write_voice_design = partial(write_tiny_checkpoint, model_type="voice_design", model_size="1b7")
write_base = partial(write_tiny_checkpoint, model_type="base", model_size="1b7")
write_small_base = partial(write_tiny_checkpoint, model_type="base", model_size="0b6")

write_real_custom_voice = partial(
    write_real_size_folder, model_type="custom_voice", model_size="1b7"
)
write_real_small_custom_voice = partial(
    write_real_size_folder, model_type="custom_voice", model_size="0b6"
)
write_real_voice_design = partial(
    write_real_size_folder, model_type="voice_design", model_size="1b7"
)
write_real_base = partial(write_real_size_folder, model_type="base", model_size="1b7")
write_real_small_base = partial(write_real_size_folder, model_type="base", model_size="0b6")
