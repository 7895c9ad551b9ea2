"""The graph: one YAML file a model, and what reads it."""
