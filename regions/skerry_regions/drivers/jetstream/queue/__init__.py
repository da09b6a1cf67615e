"""The batch queue that all edges of a zone share."""
