"""What the fast path follows: regions that die, tables while they are made, where clients are."""

from __future__ import annotations

import ipaddress

from tests.dns.example import CLIENTS, NOW, RESOLVER, SITES, data, query, responder, zone
from tests.dns.fast.compared import answered
from tests.dns.fast.fast_answers import FastResponder, finished, is_same

from skerry_dns.fast.compiling import make_table, orders_of, read_contents
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import Places, Site, State
from skerry_regions.geo.ranking import ClientOrigin


def test_a_dead_region_is_left_and_all_dead_is_all_alive() -> None:
    fast = FastResponder(responder())

    def first() -> str:
        return data(answered(fast, query("ai", subnet="198.51.100.0/24")))[0]

    answers = fast.contents.answers
    for down, address in (
        ((), "192.0.2.10"),
        (("fra",), "192.0.2.20"),
        (("fra", "iad", "nrt"), "192.0.2.10"),
    ):
        fast.responder.places.state = State(down=frozenset(down))
        fast.refresh()
        assert first() == address
    assert fast.contents.answers is answers  # what is static was not made anew


def test_a_state_that_changes_while_a_table_is_made_leaves_nothing_behind() -> None:
    """Otherwise answers of one order would be kept as those of another."""
    server = responder()
    fast = FastResponder(server)
    contents = fast.contents
    contents.rendered.clear()
    state = server.places.state
    before = finished(orders_of(contents, state))
    making = make_table(contents, before, 2, lambda: server.places.state is state)
    next(making)
    server.places.state = State(down=frozenset({"fra"}))
    assert finished(making) is None
    fast.refresh()
    assert "192.0.2.20" in data(answered(fast, query("ai", subnet="198.51.100.0/24")))
    server.places.state = State()
    fast.refresh()
    for rdtype in ("A", "AAAA", "HTTPS"):
        sent = query("ai", rdtype, subnet="198.51.100.0/24")
        expected = server.respond(sent, RESOLVER, stream=False)
        assert is_same(fast.respond(sent, RESOLVER, NOW), expected)


def test_where_clients_are_is_read_again_only_when_that_has_changed() -> None:
    server = responder()
    before = FastResponder(server).contents
    moved = Site(SITES[0].region, SITES[1].addresses)  # where clients find it; it is where it was
    server.serve([zone("new IN A 192.0.2.7")], Places([moved, *SITES[1:]], dict(CLIENTS)))
    after = finished(read_contents(server, before))
    assert after.kinds is before.kinds
    assert (after.ipv4 is before.ipv4, after.ipv6 is before.ipv6) == (True, True)
    assert len(after.entries) == len(before.entries) + 1
    for places in (
        Places(SITES[1:], CLIENTS),
        Places(SITES, {**CLIENTS, ipaddress.ip_network("10.0.0.0/8"): ClientOrigin(zone="eu")}),
        Places(SITES, CLIENTS, elsewhere=Nowhere()),
    ):
        server.serve([zone()], places)
        assert finished(read_contents(server, before)).ipv4 is not before.ipv4


class Nowhere:
    """Has heard of no address."""

    def find(self, address: Address) -> tuple[ClientOrigin | None, int]:
        return None, 0

    stated = find
