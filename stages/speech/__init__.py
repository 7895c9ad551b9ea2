"""Common parts of the families' talkers: the stage, and models that speak in codec frames."""
