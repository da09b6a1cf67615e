"""DNSSEC: keys, their succession, signatures and denials. May import zone."""
