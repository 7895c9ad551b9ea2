"""HTTP, whatever is asked: bodies, keys, limits, deadlines, events."""
