"""What `omnistage plan --gpus` computes: layouts of a model on GPUs, and what they would do."""
