"""Honest, paired benchmarks: the peer runs interleaved in the same run, ratio and spread printed.

Every bench has the same two options: `--quick` (fewer rounds) and `--json FILE`.
"""
