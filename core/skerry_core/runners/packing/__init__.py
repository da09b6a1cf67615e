"""Weights as the CPU kernels want them, and the file that keeps them so between starts."""
