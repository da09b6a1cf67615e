"""Fused kernels for GPUs in Triton. May import torch (quantised planes) and the hall."""
