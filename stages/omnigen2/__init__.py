"""OmniGen2: its pipeline, and its language model as a stage of its own."""
