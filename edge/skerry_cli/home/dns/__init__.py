"""Keys of zones, in files of a home."""
