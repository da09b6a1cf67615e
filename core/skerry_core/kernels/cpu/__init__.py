"""The compiled step of a decoder on CPUs. May import matmul, simd, models and below."""
