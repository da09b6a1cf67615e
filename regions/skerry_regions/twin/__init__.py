"""A twin of a platform under a virtual clock: the router's own code over simulated nodes and links.

May import region, control, routing; needs numba. Nothing of the platform imports it.
"""
