"""A discrete-event simulation of a server: batches with measured times on GPUs that are shared."""
