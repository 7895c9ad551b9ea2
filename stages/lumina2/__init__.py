"""Denoisers like OmniGen2's: Lumina 2 over texts, images to refer to and the image that is made."""
