"""The tiny checkpoint: transformers loads it as it is, and what it says can be read and heard."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoProcessor, Qwen2_5OmniForConditionalGeneration

from omnistage.stages.qwen2_5_omni.checkpoint.speakers import SPEAKERS
from omnistage.stages.qwen2_5_omni.checkpoint.tiny import write_tiny_checkpoint


def test_it_has_every_file_of_the_published_folder_and_is_small(tiny_qwen2_5_omni: Path) -> None:
    assert {path.name for path in tiny_qwen2_5_omni.iterdir()} == {
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "spk_dict.pt",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in tiny_qwen2_5_omni.iterdir()) < 7e6


def test_a_seed_is_one_checkpoint(tiny_qwen2_5_omni: Path, tmp_path: Path) -> None:
    for name, seed in (("again", 0), ("other", 1)):
        write_tiny_checkpoint(tmp_path / name, seed)
    for name in ("model.safetensors", "spk_dict.pt"):
        here = (tiny_qwen2_5_omni / name).read_bytes()
        assert here == (tmp_path / "again" / name).read_bytes()
        assert here != (tmp_path / "other" / name).read_bytes()


def test_two_speakers_have_tokens_that_the_talker_knows_and_nobody_else(
    tiny_qwen2_5_omni: Path,
) -> None:
    speakers = torch.load(tiny_qwen2_5_omni / "spk_dict.pt", weights_only=True)
    config = AutoConfig.from_pretrained(tiny_qwen2_5_omni)
    tokens = [voice["bos_token"] for voice in speakers.values()]
    assert set(speakers) == set(SPEAKERS)
    assert len({*tokens, config.talker_config.tts_text_pad_token_id}) == 3
    named = len(AutoProcessor.from_pretrained(tiny_qwen2_5_omni).tokenizer)
    assert all(named <= token < config.thinker_config.text_config.vocab_size for token in tokens)
    size = config.token2wav_config.dit_config.enc_emb_dim
    assert all(voice["cond"].shape == (1, size) for voice in speakers.values())


def test_the_dit_may_have_the_published_layers(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, real_dit=True)
    dit = AutoConfig.from_pretrained(tmp_path).token2wav_config.dit_config
    assert (dit.num_hidden_layers, dit.block_size) == (22, 24)
    assert (list(dit.look_ahead_layers), list(dit.look_backward_layers)) == ([10], [0, 20])


def test_weights_are_those_of_the_file(tiny_qwen2_5_omni: Path) -> None:
    from safetensors import safe_open

    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(
        tiny_qwen2_5_omni, dtype=torch.float32
    )
    named = dict(model.named_parameters())
    with safe_open(tiny_qwen2_5_omni / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(named)
        for name, parameter in named.items():
            stored = file.get_tensor(name)
            assert stored.dtype == (
                torch.float32 if name.startswith("token2wav.") else torch.bfloat16
            )
            assert torch.equal(stored.float(), parameter)


def test_the_template_has_turns_and_media(tiny_qwen2_5_omni: Path) -> None:
    processor = AutoProcessor.from_pretrained(tiny_qwen2_5_omni)
    media = [{"type": kind} for kind in ("image", "audio", "video")]
    turns = [{"role": "user", "content": [*media, {"type": "text", "text": "Hi"}]}]
    text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_bos|><|IMAGE|><|vision_eos|><|audio_bos|><|AUDIO|>"
        "<|audio_eos|><|vision_bos|><|VIDEO|><|vision_eos|>Hi<|im_end|>\n<|im_start|>assistant\n"
    )
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    text = processor.apply_chat_template(turns, tokenize=False)
    assert text == ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n")
