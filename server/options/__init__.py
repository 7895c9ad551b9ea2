"""The options of a server beside its graph."""
