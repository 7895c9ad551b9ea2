"""Sound that goes out: encoded, stretched."""
