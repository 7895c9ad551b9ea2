"""GLM-Image's autoregressive half as a stage of its own."""
