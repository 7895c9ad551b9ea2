"""A checkpoint of DreamID-Omni: read, and written tiny."""
