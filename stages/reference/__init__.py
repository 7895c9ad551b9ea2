"""Published implementations that answers are compared with; one process runs nothing else."""
