"""Writes checkpoints of OmniGen2."""
