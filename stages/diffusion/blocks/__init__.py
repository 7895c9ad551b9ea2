"""What a denoiser's repeated blocks compute in other ways than Diffusers does."""
