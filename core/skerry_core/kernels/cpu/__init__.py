"""The compiled step of a decoder on CPUs. May import simd, models and below."""
