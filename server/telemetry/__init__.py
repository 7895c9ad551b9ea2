"""Reports on requests: log lines, recent traces, spans for a collector."""
