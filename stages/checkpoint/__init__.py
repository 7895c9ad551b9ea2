"""What the writers of tiny and real-size checkpoints share."""
