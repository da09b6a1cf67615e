"""Drafts from a stream's own transcript: where it repeats itself, and how often that pays. Pure.

May import the hall.
"""
