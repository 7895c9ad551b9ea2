"""The wire between processes."""
