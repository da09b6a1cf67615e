"""Registries and queues, one file per driver. May import the hall."""
