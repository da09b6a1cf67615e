"""The engine: it schedules sequences, runs steps and hands out tokens.

May import grammar, kv and the hall.
"""
