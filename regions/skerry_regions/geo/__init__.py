"""Where addresses are and which regions are near: pure, for edges that steer and for DNS.

May import topology.
"""
