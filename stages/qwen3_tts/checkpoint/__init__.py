"""Writes Qwen3-TTS checkpoints: tiny, and of real size."""
