"""Common parts of the writers of tiny and real-size checkpoints."""
