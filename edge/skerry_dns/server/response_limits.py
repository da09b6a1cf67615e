"""What one network gets: answers of one kind, answers in all, and proofs.

Answers of one kind are those of one name and code for one client subnet: a resolver that requests
thousands of its clients' networks (RFC 7871) is a thousand clients. As the subnet is the client's
to make up, a flood in somebody's name could vary it; so all that carry one are counted together
too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from skerry_dns import wire
from skerry_dns.server.response_rate import ResponseRate, Verdict, network_of
from skerry_regions.geo.networks import Address, Network

RESPONSES, SUBNETS, PROOFS = 20, 1000, 100  # per second; of proofs also with a cookie
TOTAL_PROOFS = 1000  # per second, of everybody: a third of a core
PROOF_SLOTS = 1 << 12

Ranges = list[tuple[int, int]]  # first and last, in order, none overlapping


class ResponseLimits:
    """The limits of one server. Times are Unix seconds."""

    def __init__(
        self,
        *,
        responses: float = RESPONSES,
        subnets: float = SUBNETS,
        proofs: float = PROOFS,
        exempt: Sequence[Network] = (),
    ) -> None:
        """Per second and network. Of `exempt` networks responses are not limited, and proofs only
        as those of everybody are."""
        self.responses = ResponseRate(responses)
        self.subnets = ResponseRate(subnets)
        self.exempt = {version: ranges_of(exempt, version) for version in (4, 6)}
        self._proofs = ResponseRate(proofs, PROOF_SLOTS)
        self._all_proofs = ResponseRate(TOTAL_PROOFS, 1)

    def judge(
        self, address: Address, kind: int, now: float, subnet: wire.Subnet | None = None
    ) -> Verdict:
        """Count one answer. `kind` distinguishes answers (a hash of name and code)."""
        if self._is_exempt(address):
            return Verdict.SEND
        if subnet is None or subnet.network.prefixlen == 0:
            return self.responses.judge(address, kind, now)
        client = network_of(subnet.network.network_address)
        verdicts = (
            self.responses.judge(address, hash((kind, client)), now),
            self.subnets.judge(address, 0, now),
        )
        return max(verdicts, key=list(Verdict).index)

    def allows_proof(self, address: Address, now: float) -> bool:
        """Count one proof, and say whether it may be made."""
        is_own_share = (
            self._is_exempt(address) or self._proofs.judge(address, 0, now) is Verdict.SEND
        )
        return is_own_share and self._all_proofs.judge(address, 0, now) is Verdict.SEND

    def _is_exempt(self, address: Address) -> bool:
        ranges = self.exempt[address.version]
        at = bisect_right(ranges, int(address), key=lambda each: each[0]) - 1
        return at >= 0 and int(address) <= ranges[at][1]


def ranges_of(networks: Sequence[Network], version: int) -> Ranges:
    """Return what networks of a family span, without overlaps."""
    spans = sorted(
        (int(each.network_address), int(each.broadcast_address))
        for each in networks
        if each.version == version
    )
    merged: Ranges = []
    for first, last in spans:
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged
