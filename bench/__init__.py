"""A load client for servers with OpenAI's chat API."""
