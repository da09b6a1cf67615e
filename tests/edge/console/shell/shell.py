"""Where the console's files lie, and what browsers are told of them."""

from __future__ import annotations

OWN = {"x-skerry-console": "1"}

POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
