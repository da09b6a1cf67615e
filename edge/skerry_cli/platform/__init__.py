"""Commands for the platform of this home: up, down, status, models, tokens.

May import composition, home.
"""
