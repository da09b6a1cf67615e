"""Agents against platforms: cached prompts over a trace of turns."""
