"""Writes VoxCPM2 checkpoints: tiny, and of real size."""
