"""Zones and records as resources: what may be written of them, and what of it must agree."""
