"""Kernels in JAX and Pallas. May import the hall."""
