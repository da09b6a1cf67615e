"""Commands that look: top, trace, usage. May import home."""
