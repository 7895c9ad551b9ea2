"""Runs the calls of all requests, step by step."""
