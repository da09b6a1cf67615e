"""Responses as OpenAI has them. May import openai, api and what is below."""
