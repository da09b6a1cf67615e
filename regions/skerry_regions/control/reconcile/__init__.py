"""Makes what is wanted so: processes, models, observed state.

May import machines, planning, desired.
"""
