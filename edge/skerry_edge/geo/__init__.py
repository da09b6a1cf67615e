"""Where a client is, which regions are near, and the authoritative DNS server that says so."""
