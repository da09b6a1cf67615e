"""Grammars compiled and tried in a child process, which may not take the node with it.

Imports the hall.
"""
