"""A denoiser on several GPUs: a process each, driven by the engine's."""
