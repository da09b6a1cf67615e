"""Launches of kernels against other ones of the same kernels, for `bench.gpu_sweep`."""
