"""HTTP for all endpoints: bodies, keys, limits, deadlines, events."""
