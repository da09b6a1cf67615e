"""Kernels by back end; `rope.py` is what all of them share. May import models and below."""
