"""Processes: supervision, launching, backing off, health. May import the hall."""
