"""A page to try a server with: chat, pictures, edits, speech and transcripts, in a browser."""
