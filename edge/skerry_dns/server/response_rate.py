"""Response rate limiting: how many answers of one kind a network may get per second.

A spoofed flood wants the server's answers sent to a victim. Above the limit most answers are
dropped, and every second one is cut short with TC=1, which a real resolver repeats over TCP. The
table is of fixed size and nothing is allocated under attack: networks that share a slot share its
budget, which is the safe direction. (After BIND's RRL, with its window and slip.)
"""

from __future__ import annotations

import array
import ipaddress
from enum import Enum

from skerry_regions.geo.networks import Address

SLOTS = 1 << 16
WINDOW = 15.0  # seconds over which a debt is remembered
SLIP = 2


class Verdict(Enum):
    """What to do with an answer; from best to worst."""

    SEND = "send"
    CUT = "cut"  # an empty answer with TC=1
    DROP = "drop"


class ResponseRate:
    """Token buckets by (client /24 or /56, kind of answer)."""

    def __init__(self, per_second: float = 20.0, slots: int = SLOTS) -> None:
        self.per_second = per_second
        self._balance = array.array("d", [per_second]) * slots
        self._updated = array.array("d", [0.0]) * slots
        self._limited = array.array("L", [0]) * slots

    def judge(self, address: Address, kind: int, now: float) -> Verdict:
        """Count one answer. `kind` distinguishes answers (a hash of name and code)."""
        slot = hash((network_of(address), kind)) % len(self._balance)
        earned = (now - self._updated[slot]) * self.per_second
        balance = min(self._balance[slot] + earned, self.per_second) - 1.0
        self._balance[slot] = max(balance, -WINDOW * self.per_second)
        self._updated[slot] = now
        if balance >= 0.0:
            self._limited[slot] = 0
            return Verdict.SEND
        self._limited[slot] += 1
        return Verdict.CUT if self._limited[slot] % SLIP == 0 else Verdict.DROP


def network_of(address: Address) -> int:
    """Return the /24 or /56 around an address, which one attacker's target cannot leave."""
    keep = 24 if isinstance(address, ipaddress.IPv4Address) else 56
    return int(address) >> (address.max_prefixlen - keep)
