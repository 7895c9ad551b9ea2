"""OpenAI's Responses API over the same chats: its fields, its items, its events, its store."""
