"""Flags of DNS's header."""

from __future__ import annotations

import dns.flags

AA, QR, TC = dns.flags.AA, dns.flags.QR, dns.flags.TC
