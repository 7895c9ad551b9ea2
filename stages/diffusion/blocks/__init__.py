"""Faster ways to compute denoisers' blocks and VAEs than Diffusers'."""
