"""The engine: synchronous, token ids in, token ids out. It knows no text and no network."""
