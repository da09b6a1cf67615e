"""Which node serves a request, by cost in seconds.

Pure. May import topology, models and the hall.
"""
