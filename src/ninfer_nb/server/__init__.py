"""The HTTP server: OpenAI Chat, OpenAI Responses and Anthropic Messages on one engine."""
