"""The form of an answer: schemas, tools, their prompts and grammars.

May import text, families and the hall.
"""
