"""The composition roots: each puts the parts of one process together. May import every package."""
