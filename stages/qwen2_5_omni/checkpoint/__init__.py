"""Writes Qwen2.5-Omni checkpoints: tiny, and of real size."""
