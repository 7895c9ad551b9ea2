"""What is told of requests: log lines, the latest of them, spans for a collector."""
