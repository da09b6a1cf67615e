"""Commands that look: status, top, trace, usage, audit. May import home."""
