"""Commands that look: status, top, trace, usage. May import home."""
