"""Zones for secondaries, and notifying them of changes. May import zone and wire."""
