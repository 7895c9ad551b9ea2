"""The gateway process: HTTP in, chunks to the stages, their outputs merged; no torch, no vLLM."""
