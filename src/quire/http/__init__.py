"""The engine behind OpenAI's HTTP API, and behind others."""
