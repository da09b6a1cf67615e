"""Ranks of a model beside a node's own: the processes, here or on other machines, and the channels
between them.

Imports the core's contracts, links and the store of models.
"""
