"""Prefixes to values: the longest prefix counts, and scopes never lie."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from skerry_regions.geo.networks import Network, Networks

# A small world: every prefix lies in 10.0.0.0/24, so that they overlap often.
prefixes = st.builds(
    lambda low, length: ipaddress.ip_network((0x0A000000 | low, length), strict=False),
    st.integers(0, 255),
    st.integers(20, 32),
)
worlds = st.dictionaries(prefixes, st.sampled_from("abc"), max_size=12)


def by_hand(entries: dict[Network, str], address: ipaddress.IPv4Address) -> str | None:
    holding = [network for network in entries if address in network]
    return entries[max(holding, key=lambda each: each.prefixlen)] if holding else None


@given(worlds, st.integers(0, 255))
def test_longest_prefix_counts(entries: dict[Network, str], low: int) -> None:
    address = ipaddress.IPv4Address(0x0A000000 | low)
    assert Networks(entries).find(address)[0] == by_hand(entries, address)


@given(worlds, st.integers(0, 255))
def test_all_of_a_scope_has_one_value_and_it_is_the_widest(
    entries: dict[Network, str], low: int
) -> None:
    networks = Networks(entries)
    address = ipaddress.IPv4Address(0x0A000000 | low)
    value, scope = networks.find(address)
    block = ipaddress.ip_network((int(address), scope), strict=False)
    inside = [block] if scope >= 24 else [ipaddress.ip_network("10.0.0.0/24")]
    assert {networks.find(each)[0] for net in inside for each in net} == {value}
    if scope > 24:
        wider = block.supernet()
        assert {networks.find(each)[0] for each in wider} != {value}


def test_both_families_and_nothing() -> None:
    networks = Networks({ipaddress.ip_network("2001:db8::/32"): "six"})
    assert networks.find(ipaddress.ip_address("2001:db8::1")) == ("six", 32)
    assert networks.find(ipaddress.ip_address("2001:db9::1")) == (None, 32)
    assert networks.find(ipaddress.ip_address("8000::")) == (None, 1)
    assert networks.find(ipaddress.ip_address("192.0.2.1")) == (None, 0)
