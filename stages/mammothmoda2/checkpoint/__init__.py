"""Tiny checkpoints of MammothModa2."""
