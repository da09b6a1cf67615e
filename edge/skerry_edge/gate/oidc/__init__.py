"""Callers who log in at an OpenID provider: issuers, their keys, and what claims grant.

May import the gate's principal and what is below the gate.
"""
