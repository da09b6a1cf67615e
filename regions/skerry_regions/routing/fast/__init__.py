"""The router's price, its candidates and its index of blocks, compiled. The only numba here.

Imported where a region has many nodes; everything else works without it.
"""
