"""The process of a stage, whatever its stage is; no vLLM, no torch."""
