"""Ranks of a model beside a node's own: the processes, and the channels between them.

Imports the core's contracts.
"""
