"""Writes Qwen3-Omni checkpoints: tiny, and of real size."""
