"""MammothModa2: image ids of a language model, of whose states a denoiser draws."""
