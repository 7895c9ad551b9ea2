"""Cells: whole servers of one graph, side by side on one machine, and the balancer before them."""
