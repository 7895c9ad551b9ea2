"""Layouts of a model on GPUs, for `omnistage plan --gpus`."""
