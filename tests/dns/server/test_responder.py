"""Answers byte for byte, as dnspython reads them: what is in the zone, and by place."""

from __future__ import annotations

import dns.edns
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from tests.dns.example import CLIENTS, ORIGIN, RESOLVER, ask, data, query, responder, texts
from tests.dns.server.flags import AA, QR

from skerry_regions.geo.places import State


def scope_of(message: dns.message.Message) -> int | None:
    for option in message.options:
        if isinstance(option, dns.edns.ECSOption):
            return option.scopelen
    return None


# --- what is in the zone -----------------------------------------------------------------------


def test_a_static_record_keeps_the_case_of_the_question() -> None:
    answer = ask("StAtIc")
    assert answer.flags == QR | AA
    assert answer.answer[0].to_text() == "StAtIc.example.test. 3600 IN A 192.0.2.80"
    assert b"\x06StAtIc" in answer.to_wire()
    assert not answer.authority
    assert not answer.additional


def test_aliases_are_followed_inside_the_zone_and_not_to_a_place() -> None:
    assert texts(ask("www")) == [
        "www.example.test. 3600 IN CNAME static.example.test.",
        "static.example.test. 3600 IN A 192.0.2.80",
    ]
    assert texts(ask("to-ai")) == ["to-ai.example.test. 3600 IN CNAME ai.example.test."]
    assert texts(ask("out")) == ["out.example.test. 3600 IN CNAME elsewhere.invalid."]
    assert texts(ask("www", "CNAME")) == ["www.example.test. 3600 IN CNAME static.example.test."]


@pytest.mark.parametrize(
    ("name", "rdtype", "rcode"),
    [
        ("nothing", "A", dns.rcode.NXDOMAIN),
        ("x.static", "A", dns.rcode.NXDOMAIN),
        ("static", "AAAA", dns.rcode.NOERROR),
        ("er", "A", dns.rcode.NOERROR),  # an empty non-terminal exists
        ("wild", "TXT", dns.rcode.NOERROR),
        ("ai", "TXT", dns.rcode.NOERROR),
        ("x.wild", "A", dns.rcode.NOERROR),
    ],
)
def test_what_there_is_not(name: str, rdtype: str, rcode: dns.rcode.Rcode) -> None:
    answer = ask(name, rdtype, subnet="203.0.113.0/24")
    assert (answer.rcode(), answer.answer) == (rcode, [])
    [soa] = answer.authority
    assert soa.to_text() == (
        "example.test. 300 IN SOA ns1.example.test. hostmaster.example.test. 1 7200 900 1209600 300"
    )
    assert scope_of(answer) == 0


def test_wildcards_and_other_types() -> None:
    assert texts(ask("a.b.wild", "TXT")) == ['a.b.wild.example.test. 3600 IN TXT "anything"']
    assert texts(ask("caa", "CAA")) == ['caa.example.test. 3600 IN CAA 0 issue "ca.example.net"']
    assert ask("@", "SOA").answer[0].ttl == 3600


def test_a_delegation_carries_its_glue() -> None:
    answer = ask("host.child")
    assert answer.flags == QR  # not ours to be authoritative for
    assert answer.rcode() == dns.rcode.NOERROR
    [servers] = answer.authority
    assert sorted(servers.to_text().splitlines()) == [
        "child.example.test. 3600 IN NS ns.child.example.test.",
        "child.example.test. 3600 IN NS ns.elsewhere.invalid.",
    ]
    assert [rrset.to_text() for rrset in answer.additional] == [
        "ns.child.example.test. 3600 IN A 192.0.2.99"
    ]
    assert ask("child", "DS").flags == QR | AA


def test_names_of_nobody_here_are_refused() -> None:
    answer = ask("example.org.")
    assert answer.rcode() == dns.rcode.REFUSED
    assert [option.to_text() for option in answer.options] == ["EDE 20 (Not Authoritative)"]
    chaos = dns.message.make_query("version.bind", "TXT", "CH").to_wire()
    reply = responder().respond(chaos, RESOLVER, stream=False)
    assert reply is not None
    assert dns.message.from_wire(reply).rcode() == dns.rcode.REFUSED


def test_any_and_transfers_are_not_for_strangers() -> None:
    assert texts(ask("static", "ANY")) == ['static.example.test. 3600 IN HINFO "RFC8482" ""']
    assert ask("@", "AXFR").rcode() == dns.rcode.REFUSED
    assert ask("@", "IXFR").rcode() == dns.rcode.REFUSED


# --- by place ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subnet", "address", "scope"),
    [
        ("198.51.100.0/24", "192.0.2.10", 24),  # Berlin; the /25 that is known speaks for its /24
        ("203.0.113.0/24", "192.0.2.20", 23),  # New York; two neighbours are one block
        ("203.0.0.0/8", "192.0.2.10", 18),  # nobody knows: the first in the list
        ("0.0.0.0/0", "192.0.2.10", 0),
    ],
)
def test_the_client_s_subnet_chooses(subnet: str, address: str, scope: int) -> None:
    answer = ask("ai", subnet=subnet)
    assert address in data(answer)
    assert answer.answer[0].ttl == 30
    [option] = [each for each in answer.options if isinstance(each, dns.edns.ECSOption)]
    assert (option.scopelen, f"{option.address}/{option.srclen}") == (scope, subnet)


def test_https_gives_the_second_region_too_each_by_a_name_of_its_own() -> None:
    assert len(texts(ask("ai", subnet="198.51.100.0/24"))) == 2
    assert texts(ask("ai", "AAAA", subnet="2001:db8:aaaa::/48")) == [
        "ai.example.test. 30 IN AAAA 2001:db8::30"
    ]
    assert texts(ask("ai", "HTTPS", subnet="203.0.113.0/24")) == [
        'ai.example.test. 30 IN HTTPS 1 iad.ai.example.test. alpn="http/1.1" port="9301" '
        'ipv4hint="192.0.2.20"',
        'ai.example.test. 30 IN HTTPS 2 fra.ai.example.test. alpn="http/1.1" '
        'ipv4hint="192.0.2.10,192.0.2.11" ipv6hint="2001:db8::10"',
    ]
    # Without TLS there is none: who finds one goes over from http to https.
    assert texts(ask("ai", "HTTPS", subnet="2001:db8:aaaa::/48")) == [
        'ai.example.test. 30 IN HTTPS 1 fra.ai.example.test. alpn="http/1.1" '
        'ipv4hint="192.0.2.10,192.0.2.11" ipv6hint="2001:db8::10"',
    ]


def test_a_and_aaaa_lead_to_one_region() -> None:
    """The nearest has no IPv6, and so there is none: clients that prefer it would cross the sea."""
    assert data(ask("ai", "A", subnet="203.0.113.0/24")) == ["192.0.2.20"]
    none = ask("ai", "AAAA", subnet="203.0.113.0/24")
    assert (none.rcode(), none.answer) == (dns.rcode.NOERROR, [])
    assert none.authority[0].rdtype == dns.rdatatype.SOA
    assert [
        option.scopelen for option in none.options if isinstance(option, dns.edns.ECSOption)
    ] == [0]


def test_without_a_subnet_the_resolver_s_address_counts() -> None:
    new_york = next(network for network in CLIENTS if str(network) == "203.0.113.0/24")
    wire = responder().respond(query("ai"), new_york[7], stream=False)
    assert wire is not None
    answer = dns.message.from_wire(wire)
    assert data(answer) == ["192.0.2.20"]
    assert scope_of(answer) is None  # never an option that was not asked for


def test_a_dead_region_is_left_at_once_and_all_dead_is_all_alive() -> None:
    server = responder()

    def first() -> str:
        wire = server.respond(query("ai", subnet="198.51.100.0/24"), RESOLVER, stream=True)
        assert wire is not None
        return data(dns.message.from_wire(wire))[0]

    places = server.places
    assert first() == "192.0.2.10"
    places.state = State(down=frozenset({"fra"}))
    assert first() == "192.0.2.20"
    places.state = State(down=frozenset({"fra", "iad", "nrt"}))
    assert first() == "192.0.2.10"


def test_the_zone_is_the_nearest_above() -> None:
    assert ask("@", "NS").answer[0].name == ORIGIN
