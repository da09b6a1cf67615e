"""Packed weights times activations on CPUs: how they lie, and what reads them. May import simd."""
