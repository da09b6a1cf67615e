"""The form of an answer: schemas, tools, their prompts and parsers.

May import text and the hall.
"""
