"""Processes: supervision, succession, backing off, health. May import the hall."""
