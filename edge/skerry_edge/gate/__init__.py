"""Admission of requests, and where they go: keys, quotas, budgets, steering.

May import telemetry and the hall.
"""
