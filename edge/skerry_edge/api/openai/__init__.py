"""Chat completions, completions and embeddings as OpenAI has them.

May import api and what is below.
"""
