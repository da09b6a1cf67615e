"""A decoder on Torch: loading, sizes, paged KV and steps, plain or with Triton's kernels."""
