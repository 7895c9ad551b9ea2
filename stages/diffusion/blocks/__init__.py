"""What denoisers' blocks and VAEs compute in other ways than Diffusers does."""
