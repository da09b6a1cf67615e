"""The authoritative DNS server that says which regions are near; `wire.py` reads queries."""
