"""The protocol of the responder: malformed queries, options, sizes, limits, any bytes at all."""

from __future__ import annotations

import ipaddress
import struct

import dns.edns
import dns.message
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clock import Clock
from tests.dns.example import NOW, RESOLVER, ask, data, query, responder
from tests.dns.server.flags import TC

from skerry_dns.server.responder import IP_UDP_HEADER, NO_COOKIE_FACTOR


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
