"""A pipeline's modules: read, placed and moved."""
