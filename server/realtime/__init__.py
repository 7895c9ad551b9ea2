"""OpenAI's Realtime API: a session's conversation, turns and responses, whatever its transport."""
