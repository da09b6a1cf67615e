"""Chat templates: laid out in a sandbox, within a budget; those of strangers in a child process.

May import what runs confined children, and nothing else of the edge.
"""
