"""Parts of `omnistage serve`: its options, the checks before anything loads, the dry run."""
