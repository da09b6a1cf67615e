"""Answers byte for byte, as dnspython reads them."""

from __future__ import annotations

import ipaddress
import struct

import dns.edns
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clock import Clock
from tests.dns.example import (
    CLIENTS,
    NOW,
    ORIGIN,
    RESOLVER,
    ask,
    data,
    query,
    responder,
    texts,
)

from skerry_dns.server.responder import IP_UDP_HEADER, NO_COOKIE_FACTOR
from skerry_regions.geo.places import State

AA, QR, TC = dns.flags.AA, dns.flags.QR, dns.flags.TC


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


# --- the protocol --------------------------------------------------------------------------------


def raw(sent: bytes, *, stream: bool = False) -> dns.message.Message:
    wire = responder().respond(sent, RESOLVER, stream=stream)
    assert wire is not None
    return dns.message.from_wire(wire)


def test_answers_and_scraps_get_no_answer() -> None:
    assert responder().respond(b"\0" * 11, RESOLVER, stream=False) is None
    answer = ask("static").to_wire()
    assert responder().respond(answer, RESOLVER, stream=False) is None


def with_option(code: int, value: bytes) -> bytes:
    message = dns.message.make_query(
        "ai.example.test",
        "A",
        use_edns=0,
        options=[dns.edns.GenericOption(dns.edns.OptionType.make(code), value)],
    )
    return message.to_wire()


@pytest.mark.parametrize(
    "malformed",
    [
        query("ai")[:-1],
        query("ai") + b"\0",
        struct.pack("!HHHHHH", 1, 0, 0, 0, 0, 0),
        struct.pack("!HHHHHH", 1, 0, 2, 0, 0, 0) + query("ai", edns=False)[12:] * 2,
        struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\x01\0\x01",
        struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\x40" + b"a" * 64 + b"\0\0\x01\0\x01",
        struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\x3f" + b"a" * 63,
        struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + (b"\x01a" * 130) + b"\0\0\x01\0\x01",
        struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + (b"\x01a" * 126) + b"\x02aa\0\0\x01\0\x01",
        with_option(8, b""),
        with_option(8, struct.pack("!HBB", 3, 0, 0)),
        with_option(8, struct.pack("!HBB", 1, 33, 0) + bytes(5)),
        with_option(8, struct.pack("!HBB", 1, 24, 24) + bytes([203, 0, 113])),
        with_option(8, struct.pack("!HBB", 1, 24, 0) + bytes([203, 0, 113, 0])),
        with_option(8, struct.pack("!HBB", 1, 20, 0) + bytes([203, 0, 113])),
        with_option(10, bytes(9)),
        with_option(10, bytes(41)),
    ],
    ids=lambda _: "query",  # its bytes are others each time
)
def test_malformed_queries_are_told_so(malformed: bytes) -> None:
    answer = raw(malformed)
    assert answer.rcode() == dns.rcode.FORMERR
    assert (answer.question, answer.answer) == ([], [])


def test_other_opcodes_and_versions() -> None:
    notify = dns.message.make_query("example.test", "SOA")
    notify.set_opcode(dns.opcode.NOTIFY)
    answer = raw(notify.to_wire())
    assert (answer.rcode(), answer.opcode()) == (dns.rcode.NOTIMP, dns.opcode.NOTIFY)
    later = dns.message.make_query("static.example.test", "A", use_edns=1)
    answer = raw(later.to_wire())
    assert (answer.rcode(), answer.edns, answer.answer) == (dns.rcode.BADVERS, 0, [])


def test_no_opt_for_those_who_sent_none() -> None:
    assert ask("static", edns=False).edns == -1
    assert ask("static").edns == 0
    assert ask("static").payload == 1232


def test_name_server_identity_and_unknown_options() -> None:
    options = [option.to_wire() for option in raw(with_option(3, b"")).options]
    assert options == [b"edge-1"]
    assert raw(with_option(65001, b"whatever")).rcode() == dns.rcode.NOERROR


def test_what_does_not_fit_is_cut_and_comes_whole_over_tcp() -> None:
    cut = ask("many", "TXT", stream=False)
    assert cut.flags & TC
    assert (cut.answer, cut.rcode()) == ([], dns.rcode.NOERROR)
    whole = ask("many", "TXT", stream=True)
    assert not whole.flags & TC
    assert len(data(whole)[0]) > 2000


@given(
    st.sampled_from(["ai", "static", "nothing", "many", "child", "a.wild", "@", "example.org."]),
    st.sampled_from(["A", "AAAA", "HTTPS", "TXT", "NS", "SOA", "ANY", "DS"]),
    st.booleans(),
)
def test_nobody_is_flooded_through_us(name: str, rdtype: str, edns: bool) -> None:
    asked = query(name, rdtype, edns=edns)
    answer = responder().respond(asked, RESOLVER, stream=False)
    assert answer is not None
    assert len(answer) + IP_UDP_HEADER <= NO_COOKIE_FACTOR * (len(asked) + IP_UDP_HEADER)


def test_a_cookie_lifts_the_limits() -> None:
    clock = Clock(NOW)
    server = responder(clock, per_second=1.0)

    def send(cookie: bytes) -> dns.message.Message | None:
        message = dns.message.make_query(
            "many.example.test",
            "TXT",
            use_edns=0,
            options=[dns.edns.GenericOption(dns.edns.OptionType.COOKIE, cookie)],
        )
        wire = server.respond(message.to_wire(), RESOLVER, stream=False)
        return dns.message.from_wire(wire) if wire is not None else None

    first = send(b"clientck")
    assert first is not None
    assert first.flags & TC
    [cookie] = [option.to_wire() for option in first.options]
    assert cookie is not None
    assert cookie[:8] == b"clientck"
    assert len(cookie) == 24
    assert send(b"clientck") is None  # the budget of one per second is spent
    for _ in range(5):  # never limited, and given back as it is while it is young
        again = send(cookie)
        assert again is not None
        assert [option.to_wire() for option in again.options] == [cookie]
    clock.now += 1801
    renewed = send(cookie)
    assert renewed is not None
    assert [option.to_wire() for option in renewed.options] != [cookie]


def test_a_flood_of_names_that_do_not_exist_is_one_budget() -> None:
    clock = Clock(NOW)
    server = responder(clock, per_second=5.0)
    answers = [server.respond(query(f"x{i}"), RESOLVER, stream=False) for i in range(105)]
    sent = [answer for answer in answers if answer is not None]
    whole = [each for each in sent if not dns.message.from_wire(each).flags & TC]
    assert (len(whole), len(sent) - len(whole)) == (5, 50)
    assert server.counters.dropped == 50
    clock.now += 30.0
    assert server.respond(query("x"), RESOLVER, stream=False) is not None
    other = ipaddress.ip_address("192.0.2.200")
    assert server.respond(query("x"), other, stream=False) is not None


@given(st.binary(max_size=300))
def test_any_bytes_at_all(sent: bytes) -> None:
    answer = responder().respond(sent, RESOLVER, stream=False)
    if answer is not None:
        dns.message.from_wire(answer)


@given(st.data())
def test_mutated_queries(draws: st.DataObject) -> None:
    wire = bytearray(query("ai", subnet="203.0.113.0/24"))
    for _ in range(draws.draw(st.integers(1, 4))):
        wire[draws.draw(st.integers(2, len(wire) - 1))] = draws.draw(st.integers(0, 255))
    answer = responder().respond(bytes(wire), RESOLVER, stream=False)
    if answer is not None:
        dns.message.from_wire(answer)


def test_the_zone_is_the_nearest_above() -> None:
    assert ask("@", "NS").answer[0].name == ORIGIN
