"""Kernels by back end; `rope.py` is what all of them share. May import weights and the hall."""
