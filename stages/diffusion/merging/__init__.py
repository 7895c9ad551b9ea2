"""Calls of several requests in one forward."""
