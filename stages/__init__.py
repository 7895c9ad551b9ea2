"""What runs inside a stage process, and the parent's handle on it."""
