"""Drivers: one interface each, several ways to run it, chosen in YAML."""
