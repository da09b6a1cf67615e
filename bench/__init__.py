"""Honest, paired benchmarks: the peer runs interleaved in the same run, ratio and spread printed.

Every bench has the same two options: `--quick` (fewer rounds) and `--json FILE`. Commands lie here
and in the rooms `core`, `kv`, `routing` and `serving`; what they are made of in `measuring`,
`subjects`, `workers` and `device`.
"""
