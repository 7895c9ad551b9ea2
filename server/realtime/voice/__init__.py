"""A voice as a session hears it: formats of audio, frames of speech, and turns."""
