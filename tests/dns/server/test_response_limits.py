"""Limits as busy resolvers and floods meet them: the reference and the fast path alike."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dns.edns
import dns.flags
import dns.message
import pytest
from tests.clock import Clock
from tests.dns.example import CLIENTS, NOW, ORIGIN, RESOLVER, SITES, query, zone
from tests.dns.fast.fast_answers import FastResponder, Left

from skerry_dns.server.cookies import Cookies
from skerry_dns.server.responder import Responder
from skerry_dns.server.response_limits import TOTAL_PROOFS, ResponseLimits, ranges_of
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.zone_key import ZoneKey
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import Places

Respond = Callable[[bytes], "bytes | None"]
EXEMPT = [ipaddress.ip_network(each) for each in ("198.18.0.0/24", "2001:db8:1::/48")]


def responder(clock: Clock, limits: ResponseLimits, signed: SignedZone | None = None) -> Responder:
    return Responder(
        [zone() if signed is None else signed.zone],
        Places(SITES, CLIENTS),
        cookies=Cookies(bytes(16)),
        limits=limits,
        clock=clock,
        signed={} if signed is None else {ORIGIN: signed},
    )


def ways(clock: Clock, limits: Callable[[], ResponseLimits], sender: Address) -> list[Respond]:
    """Of answering over UDP: by the reference, and by the fast path."""
    slow, fast = responder(clock, limits()), FastResponder(responder(clock, limits()))
    return [
        lambda sent: slow.respond(sent, sender, stream=False),
        lambda sent: fast.respond(sent, sender, clock.now),
    ]


def counted(answers: list[bytes | None]) -> Counter[str]:
    def kind(answer: bytes | None) -> str:
        if answer is None:
            return "dropped"
        return "cut" if dns.message.from_wire(answer).flags & dns.flags.TC else "whole"

    return Counter(map(kind, answers))


def asked(
    clock: Clock, respond: Respond, per_second: int, seconds: int, subnets: int
) -> Counter[str]:
    """Of one name, for so many client subnets in turn."""
    answers: list[bytes | None] = []
    for number in range(per_second * seconds):
        clock.now += 1.0 / per_second
        subnet = ipaddress.IPv4Address((10 << 24) + (number % subnets << 8)) if subnets else None
        answers.append(respond(query("ai", subnet=f"{subnet}/24" if subnet else "")))
    return counted(answers)


@pytest.mark.parametrize("way", [0, 1], ids=["slow", "fast"])
def test_a_busy_resolver_that_sends_subnets_gets_every_answer(way: int) -> None:
    """D2 of the findings: 156 queries per second for one name were mostly cut or dropped."""
    clock = Clock(NOW)
    respond = ways(clock, ResponseLimits, RESOLVER)[way]
    assert asked(clock, respond, 156, 5, subnets=4096) == Counter(whole=780)
    clock.now += 60.0
    assert asked(clock, respond, 156, 5, subnets=0)["whole"] <= 20 + 5 * 20  # without any


@pytest.mark.parametrize("way", [0, 1], ids=["slow", "fast"])
def test_who_makes_up_subnets_is_limited_all_the_same(way: int) -> None:
    clock = Clock(NOW)
    respond = ways(clock, lambda: ResponseLimits(subnets=100), RESOLVER)[way]
    answers = asked(clock, respond, 1000, 4, subnets=1 << 16)
    assert 100 <= answers["whole"] <= 100 + 100
    assert answers["dropped"] > 1500
    clock.now += 60.0
    assert asked(clock, respond, 200, 4, subnets=1)["whole"] <= 20 + 4 * 20  # always the same one


@pytest.mark.parametrize("way", [0, 1], ids=["slow", "fast"])
@pytest.mark.parametrize("sender", ["198.18.0.255", "2001:db8:1:ffff::1"])
def test_whom_the_operator_knows_has_no_limit(way: int, sender: str) -> None:
    clock = Clock(NOW)

    def limits() -> ResponseLimits:
        return ResponseLimits(responses=5, exempt=EXEMPT)

    respond = ways(clock, limits, ipaddress.ip_address(sender))[way]
    assert asked(clock, respond, 500, 1, subnets=0) == Counter(whole=500)
    for neighbour in ("198.18.1.0", "198.17.255.255", "2001:db8:2::", "2001:db8:0:ffff::"):
        other = ways(clock, limits, ipaddress.ip_address(neighbour))[way]
        assert asked(clock, other, 100, 1, subnets=0)["whole"] < 15


def test_ranges_of_networks() -> None:
    networks = [
        ipaddress.ip_network(each)
        for each in ("10.1.0.0/16", "10.0.0.0/8", "9.0.0.0/8", "::/64", "11.0.0.1/32")
    ]
    first, last = 10 << 24, (11 << 24) - 1
    nine, eleven = (9 << 24, (10 << 24) - 1), ((11 << 24) + 1, (11 << 24) + 1)
    assert ranges_of(networks, 4) == [nine, (first, last), eleven]
    assert ranges_of(networks, 6) == [(0, (1 << 64) - 1)]


# --- signed proofs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> SignedZone:
    key = ZoneKey.create(Path(tmp_path_factory.mktemp("keys")) / "example.test.key")
    made = SignedZone(zone(*key.records(ORIGIN)), key)
    made.presign(Clock(NOW).now)
    return made


def proof_query(server: Responder, name: str, sender: Address, now: float) -> bytes:
    cookie = server.cookies.make(b"clientck", sender, int(now))
    message = dns.message.make_query(
        f"{name}.example.test", "A", want_dnssec=True, payload=1232,
        options=[dns.edns.GenericOption(dns.edns.OptionType.COOKIE, cookie)],
    )  # fmt: skip
    return message.to_wire()


@pytest.mark.parametrize("stream", [False, True])
def test_a_network_gets_so_many_proofs(signed: SignedZone, stream: bool) -> None:
    """D8 of the findings: holders of a cookie had proofs signed without a limit."""
    clock = Clock(NOW)
    server = responder(clock, ResponseLimits(proofs=10), signed)

    def whole(sender: str, name: str, count: int) -> int:
        address = ipaddress.ip_address(sender)
        sent = [
            proof_query(server, f"{name}{number}", address, clock.now) for number in range(count)
        ]
        return counted([server.respond(each, address, stream=stream) for each in sent])["whole"]

    assert whole("198.18.0.1", "a", 50) == 10
    assert whole("198.18.0.2", "b", 50) == 0  # of the same /24
    assert whole("198.18.1.1", "c", 50) == 10
    static = proof_query(server, "static", RESOLVER, clock.now)
    assert server.respond(static, ipaddress.ip_address("198.18.0.1"), stream=stream) is not None
    clock.now += 20.0
    assert whole("198.18.0.1", "e", 5) == 5


def test_all_networks_together_get_so_many_proofs(signed: SignedZone) -> None:
    clock = Clock(NOW)
    server = responder(clock, ResponseLimits(proofs=10), signed)
    whole = 0
    for number in range(150):
        sender = ipaddress.IPv4Address((198 << 24) + (number << 8))
        for each in range(10):
            sent = proof_query(server, f"x{each}", sender, clock.now)
            whole += server.respond(sent, sender, stream=False) is not None
    assert whole == TOTAL_PROOFS


@pytest.mark.parametrize("name", ["x.*.wild", "*.*.wild", "*.wild.nothing", "x.nothing", "a.wild"])
def test_strangers_come_back_over_tcp_for_proofs_on_both_paths(
    signed: SignedZone, name: str
) -> None:
    """D9 of the findings: below doubly starred names the two paths disagreed about what fits."""
    clock = Clock(NOW)
    slow = responder(clock, ResponseLimits(responses=1e9), signed)
    fast = FastResponder(slow)
    for rdtype in ("A", "TXT", "NSEC", "RRSIG", "ANY"):
        sent = dns.message.make_query(
            f"{name}.example.test", rdtype, want_dnssec=True, payload=1232
        ).to_wire()
        expected = slow.respond(sent, RESOLVER, stream=False)
        try:
            answer = fast.respond(sent, RESOLVER, clock.now)
        except Left:
            answer = expected
        assert expected is not None
        assert answer is not None
        assert counted([expected, answer]) == Counter(cut=2), rdtype
        assert dns.message.from_wire(answer).rcode() == dns.message.from_wire(expected).rcode()
