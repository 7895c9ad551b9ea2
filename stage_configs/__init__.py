"""One YAML stage graph a model."""
