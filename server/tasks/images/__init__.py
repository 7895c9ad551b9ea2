"""Images: what is asked, and the shapes of answers."""
