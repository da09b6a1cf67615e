"""What runs a batch: numba on CPUs, Torch, JAX, and a toy.

May import models, kernels, kv, weights and the hall.
"""
