"""Changes to a pipeline while it serves."""
