"""A decoder in JAX, and its kernels in Pallas. May import models and below."""
