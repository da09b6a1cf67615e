"""The router of an edge: its compiled index."""
