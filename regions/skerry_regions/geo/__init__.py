"""Places of addresses, and the regions near them: pure, for edges that steer and for DNS.

May import topology.
"""
