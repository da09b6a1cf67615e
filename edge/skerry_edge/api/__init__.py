"""HTTP routes in their dialects; what the dialects share lies here beside them.

The topmost room.
"""
