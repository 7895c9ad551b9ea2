"""One file an endpoint, and what only endpoints need."""
