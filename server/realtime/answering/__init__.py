"""The responses of a session."""
