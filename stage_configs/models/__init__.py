"""Knows models: architectures, embedded ones, their memory and their caches."""
