"""Qwen-Image's text encoder as a stage of its own."""
