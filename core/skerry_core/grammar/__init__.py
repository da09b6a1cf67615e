"""Grammars as token masks, and how to close what is open. May import the hall."""
