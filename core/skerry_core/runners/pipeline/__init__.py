"""A model in stages of layers, each a process of its own, on our CPU kernels.

Imports the runners' checks, packing and the runner of one stage.
"""
