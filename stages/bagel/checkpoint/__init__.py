"""A checkpoint of BAGEL: read, and written tiny."""
