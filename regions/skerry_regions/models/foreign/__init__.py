"""Files of other projects, read within bounds: GGUF headers, SentencePiece models."""
