"""Messages as Anthropic has them. May import openai, api and what is below."""
