"""Model architectures, one file each. May import kernels, weights and the hall."""
