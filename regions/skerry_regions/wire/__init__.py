"""Frames between processes: messages, connections, links, and who may talk. May import the hall."""
