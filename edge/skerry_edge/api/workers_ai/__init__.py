"""`ai.run` as Workers AI has it. May import openai, batch, api and what is below."""
