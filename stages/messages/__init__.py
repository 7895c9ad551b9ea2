"""Messages between processes, which the gateway shares."""
