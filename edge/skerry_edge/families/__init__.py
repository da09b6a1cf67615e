"""How each family of models writes: its reasoning, text and calls, described once and read back.

May import the hall.
"""
