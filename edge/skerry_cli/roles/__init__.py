"""Commands that start one role: node, edge, host, stage, control, dns; and what belongs to each.

May import composition, home.
"""
