"""The compiled step of a Llama-like model on CPUs. May import simd and the hall."""
