"""Zones for secondaries, and telling them of changes. May import zone and wire."""
