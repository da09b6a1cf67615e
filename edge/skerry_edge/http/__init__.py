"""HTTP/1.1 and TLS: sockets, heads, bodies, bounds. May import the hall."""
