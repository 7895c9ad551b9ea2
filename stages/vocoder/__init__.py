"""What a streaming decoder needs, whatever its model is."""
