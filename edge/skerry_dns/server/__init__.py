"""Answers and sockets. May import transfer, zone and wire."""
