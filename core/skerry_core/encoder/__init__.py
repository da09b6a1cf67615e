"""Encoders: vectors and classes of texts, their worker and kernels.

May import kernels, weights and the hall.
"""
