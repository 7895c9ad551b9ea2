"""Streaming decoders, whatever their models are."""
