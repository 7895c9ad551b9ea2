"""Refuses what cannot be served, before anything loads."""
