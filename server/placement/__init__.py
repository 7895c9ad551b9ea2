"""Stages on the nodes of a cluster: an agent a node, and the stages' processes that it starts."""
