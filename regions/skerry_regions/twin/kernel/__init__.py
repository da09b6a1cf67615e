"""The twin's event loop, compiled: nodes, edges and links under a virtual clock.

Calls the router's own compiled price (`routing.fast`).
"""
