"""Commands for the platform of this home: up, down, env, models, tokens.

May import composition, home.
"""
