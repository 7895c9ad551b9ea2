"""One picture of what all stages of a server compute at the same time."""
