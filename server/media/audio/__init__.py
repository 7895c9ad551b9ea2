"""Audio that goes out: encoded, stretched."""
