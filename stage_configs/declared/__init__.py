"""Declares stages, edges, deadlines, and the graph of them."""
