"""Commands that start one role: node, edge, control, dns; and what belongs to each.

May import composition, home.
"""
