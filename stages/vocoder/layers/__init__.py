"""Layers of streaming decoders, which carry state from one chunk to the next."""
