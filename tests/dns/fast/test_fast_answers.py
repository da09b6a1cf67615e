"""The fast path against the reference: the same answers to the same queries."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from dataclasses import replace
from random import Random

import dns.edns
import dns.message
import dns.name
import numpy as np
import pytest
from tests.dns.example import CLIENTS, NOW, ORIGIN, RESOLVER, SITES, data, query, responder, zone
from tests.dns.fast.compared import CO, DO, FURTHER, HEADERS, TC, absolute, answered, asked, compare
from tests.dns.fast.fast_answers import (
    ADDRESSES,
    NAMES,
    TYPES,
    FastResponder,
    Left,
    is_same,
    random_query,
    sockaddr,
)
from tests.properties import examples

from skerry_dns.fast.cookies import siphash
from skerry_dns.fast.responding import DROPPED, IGNORED, respond
from skerry_dns.server.cookies import siphash as reference_siphash
from skerry_dns.server.responder import NO_COOKIE_FACTOR
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.zone_key import ZoneKey
from skerry_regions.geo.places import Places


@pytest.fixture(scope="module")
def unsigned() -> FastResponder:
    return FastResponder(responder())


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> FastResponder:
    key = ZoneKey.create(tmp_path_factory.mktemp("keys") / "example.test.key")
    made = SignedZone(zone(*key.records(ORIGIN), *FURTHER), key)
    made.presign(NOW)
    return FastResponder(responder(signed=made))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> FastResponder:
    """Signed, and clients of one place are shared among regions by weight."""
    key = ZoneKey.create(tmp_path_factory.mktemp("keys") / "example.test.key")
    made = SignedZone(zone(*key.records(ORIGIN), *FURTHER), key)
    made.presign(NOW)
    server = responder(signed=made)
    sites = [replace(site, weight=number + 1.0, drain=10) for number, site in enumerate(SITES)]
    server.serve(server.zones, Places(sites, CLIENTS, spread=0.2), {ORIGIN: made})
    return FastResponder(server)


def test_shares_are_those_of_the_reference(shared: FastResponder) -> None:
    """Of each network, by client subnet and by sender; and both address families agree."""
    region_of = {str(each): site.region.name for site in SITES for each in site.addresses}
    found: Counter[str] = Counter()
    for number in range(examples(300, deep=2000)):
        network = ipaddress.IPv4Address((198 << 24) + (51 << 16) + (number << 8))
        regions = set[str]()
        for rdtype in ("A", "AAAA"):
            for sent, sender in (
                (query("ai", rdtype, subnet=f"{network}/24"), RESOLVER),
                (query("ai", rdtype), network + 7),
            ):
                answer = shared.respond(sent, sender, NOW)
                expected = shared.responder.respond(sent, sender, stream=False)
                assert is_same(answer, expected), (network, rdtype)
                message = dns.message.from_wire(answer or b"")
                regions |= {region_of[each] for each in data(message)} if message.answer else set()
        assert len(regions) == 1
        found.update(regions)
    assert set(found) == {"fra", "iad", "nrt"}
    [option] = [
        each
        for each in answered(shared, query("ai", subnet="10.0.0.0/8")).options
        if isinstance(each, dns.edns.ECSOption)
    ]
    assert option.scopelen == 24  # the next network may get another region


@pytest.mark.parametrize(
    ("which", "flags"),
    [("unsigned", 0), ("unsigned", DO), ("signed", 0), ("signed", DO), ("signed", DO | CO)],
)
def test_every_name_and_type(which: str, flags: int, request: pytest.FixtureRequest) -> None:
    fast: FastResponder = request.getfixturevalue(which)
    left: set[str] = set()
    for name in NAMES:
        for rdtype in TYPES:
            subnet = "203.0.113.0" if rdtype % 2 else "198.51.100.0"
            sent = asked(fast, name, rdtype, flags, subnet)
            try:
                answer = fast.respond(sent, RESOLVER, NOW)
            except Left:
                left.add(name)
                continue
            expected = fast.responder.respond(sent, RESOLVER, stream=False)
            assert is_same(answer, expected), (name, rdtype)
    made_up = {name for name in NAMES if not fast.responder.zones[0].has_name(absolute(name))}
    assert left <= (made_up if flags and which == "signed" else set())


@pytest.mark.parametrize("which", ["unsigned", "signed", "shared"])
def test_random_queries(which: str, request: pytest.FixtureRequest) -> None:
    compared, left = compare(request.getfixturevalue(which), Random(7), 60.0, 1500)
    assert compared > 4 * left


@pytest.mark.slow
@pytest.mark.parametrize("which", ["unsigned", "signed", "shared"])
def test_random_queries_for_long(which: str, request: pytest.FixtureRequest) -> None:
    seed = time.time_ns()
    compared, left = compare(request.getfixturevalue(which), Random(seed), 30.0, 10_000_000)
    assert compared > 4 * left, f"seed {seed}"


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["unsigned", "signed"])
def test_nobody_is_flooded_through_us(which: str, request: pytest.FixtureRequest) -> None:
    """Without a valid cookie: the answer with its headers is at most three times the query."""
    fast: FastResponder = request.getfixturevalue(which)
    random, sent = Random(3), 0
    while sent < 2000:
        address = random.choice(ADDRESSES)
        packet = random_query(random, fast.responder.cookies, ADDRESSES[3], int(NOW))
        try:
            answer = fast.respond(packet, address, NOW)
        except Left:
            continue
        sent += 1
        header = HEADERS[address.version]
        if answer is not None and address != ADDRESSES[3]:
            assert len(answer) + header <= NO_COOKIE_FACTOR * (len(packet) + header)


def test_a_signed_proof_for_strangers_is_cut_without_being_made(signed: FastResponder) -> None:
    message = dns.message.make_query("x7.example.test", "A", want_dnssec=True, payload=1232)
    for _ in range(2):
        answer = answered(signed, message.to_wire())
        assert answer.flags & TC
        assert not answer.authority
    with pytest.raises(Left):  # who has shown where it is gets it from the slow path
        signed.respond(asked(signed, "x7", 1, DO), RESOLVER, NOW)


def test_a_flood_of_names_that_do_not_exist_is_one_budget() -> None:
    fast = FastResponder(responder(per_second=5.0))
    answers = [fast.respond(query(f"x{i}"), RESOLVER, NOW) for i in range(105)]
    sent = [answer for answer in answers if answer is not None]
    whole = [each for each in sent if not dns.message.from_wire(each).flags & TC]
    assert (len(whole), len(sent) - len(whole)) == (5, 50)
    assert fast.scratch.counters[DROPPED] == 50
    assert fast.respond(query("x"), RESOLVER, NOW + 30.0) is not None
    assert fast.respond(query("x"), ipaddress.ip_address("192.0.2.200"), NOW) is not None
    assert fast.respond(query("static"), RESOLVER, NOW) is not None  # a name of its own
    assert fast.respond(asked(fast, "x", 1), RESOLVER, NOW) is not None  # who is known is free


@pytest.mark.parametrize("name", ["{}.wild", "{}.child"])
def test_made_up_names_below_one_count_together(name: str) -> None:
    fast = FastResponder(responder(per_second=5.0))
    answers = [fast.respond(query(name.format(i), "TXT"), RESOLVER, NOW) for i in range(15)]
    assert sum(answer is not None for answer in answers) == 10


def test_malformed_packets_are_limited_too() -> None:
    fast = FastResponder(responder(per_second=5.0))
    answers = [fast.respond(query("ai")[:-1], RESOLVER, NOW) for _ in range(15)]
    assert sum(answer is not None for answer in answers) == 5


# --- senders -------------------------------------------------------------------------------------


def test_the_sender_s_address_counts_where_there_is_no_subnet(unsigned: FastResponder) -> None:
    new_york = ipaddress.ip_address("203.0.113.9")
    for mapped in (False, True):
        answer = unsigned.respond(query("ai"), new_york, NOW, mapped=mapped)
        assert answer is not None
        assert data(dns.message.from_wire(answer)) == ["192.0.2.20"]


def test_packets_from_port_0_and_from_ourselves_get_no_answer(unsigned: FastResponder) -> None:
    before = int(unsigned.scratch.counters[IGNORED])
    assert unsigned.respond(query("ai"), RESOLVER, NOW, port=0) is None
    for address in (RESOLVER, ADDRESSES[-1]):
        own = sockaddr(address, 53)
        unsigned.keys.own[: len(own)] = np.frombuffer(own, np.uint8)
        assert unsigned.respond(query("ai"), address, NOW, port=53) is None
        assert unsigned.respond(query("ai"), address, NOW, port=54) is not None
    unsigned.keys.own[:] = 0
    assert unsigned.scratch.counters[IGNORED] - before == 3


def test_records_of_a_set_take_turns(signed: FastResponder) -> None:
    message = dns.message.make_query("trio.example.test", "A")
    firsts: set[str] = set()
    for number in range(6):
        message.id = number
        firsts.add(next(iter(answered(signed, message.to_wire()).answer[0])).to_text())
    assert firsts == {"192.0.2.1", "192.0.2.2", "192.0.2.3"}


def test_names_at_their_longest(unsigned: FastResponder) -> None:
    room = 255 - len(ORIGIN.to_wire() or b"")
    labels = [b"a" * 63, b"b" * 63, b"c" * 63, b"d" * (room - 3 * 64 - 1)]
    name = dns.name.Name((*labels, *ORIGIN.labels))
    for sent in (
        dns.message.make_query(name, "A").to_wire(),
        dns.message.make_query(dns.name.Name((*[b"x"] * 120, *ORIGIN.labels)), "A").to_wire(),
    ):
        answer = unsigned.respond(sent, RESOLVER, NOW)
        expected = unsigned.responder.respond(sent, RESOLVER, stream=False)
        assert answer is not None
        assert is_same(answer, expected)


def test_siphash_is_that_of_cookies() -> None:
    random = Random(1)
    for size in (4, 16):
        secret, message = random.randbytes(16), random.randbytes(16 + size)
        words = np.frombuffer(secret, np.uint64).copy()
        parts = np.frombuffer(message, np.uint8).copy()
        code = siphash(words, parts[:16], parts[16:])
        assert int(code).to_bytes(8, "little") == reference_siphash(secret, message)


def test_one_compiled_form(unsigned: FastResponder) -> None:
    """Another type of argument would be compiled anew, in the middle of things."""
    del unsigned
    assert len(respond.signatures) == 1  # type: ignore[attr-defined]
