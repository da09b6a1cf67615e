"""What runs a batch: numba on CPUs, Torch, JAX, and a toy.

May import kernels, kv, models, weights and the hall.
"""
