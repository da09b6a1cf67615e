"""Kernels in plain Torch, on any device that Torch knows. May import the hall."""
