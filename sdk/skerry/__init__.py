"""Skerry: serverless inference at the edge."""

__version__ = "0.1.0"
