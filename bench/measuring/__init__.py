"""What benches measure with: clocks, loads, statistics, ceilings, reports.

Imports no other room.
"""
