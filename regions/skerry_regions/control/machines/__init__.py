"""Machines that join: tokens, certificates, and what each is to run.

May import planning, desired.
"""
