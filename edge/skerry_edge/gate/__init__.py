"""Who may enter, how much, and where to: keys, quotas, budgets, steering.

May import telemetry and the hall.
"""
