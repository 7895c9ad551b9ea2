"""What processes say to each other; the gateway shares it."""
