"""The vocabulary of compiled CPU code: SIMD, addresses, threads, links, kinds of CPU.

Imports the hall only.
"""
