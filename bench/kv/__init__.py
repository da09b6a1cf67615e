"""KV that is not computed again: cached, fetched, handed over, encrypted."""
