"""What can be changed of a pipeline while it serves."""
