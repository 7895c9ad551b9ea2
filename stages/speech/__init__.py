"""What the talkers of all families share: the stage, and models that speak in codec frames."""
