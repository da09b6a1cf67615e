"""What a home has in common with all homes of its platform: tokens, limits, catalog, key root."""
