"""Kernels: `reference.py` gives each its meaning in NumPy; the others are fast."""
