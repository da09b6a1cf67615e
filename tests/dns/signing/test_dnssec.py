"""Signed answers of every kind, validated with the key that the zone publishes."""

from __future__ import annotations

import stat
from pathlib import Path

import dns.dnssec
import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from tests.clock import Clock
from tests.dns.example import NOW, ORIGIN, RESOLVER, responder, zone

from skerry_dns.server.responder import IP_UDP_HEADER, NO_COOKIE_FACTOR, Responder
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.signer import LIFETIME, RENEWAL, SKEW
from skerry_dns.signing.zone_key import KeyUnusable, ZoneKey

FURTHER = [
    "signed IN NS ns.signed",
    "signed IN DS 1 13 2 " + "ab" * 32,
    "ns.signed IN A 192.0.2.98",
    "lost IN CNAME gone",
]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> ZoneKey:
    return ZoneKey.create(tmp_path_factory.mktemp("keys") / "example.test.key")


@pytest.fixture(scope="module")
def signed(key: ZoneKey) -> SignedZone:
    made = SignedZone(zone(*key.records(ORIGIN), *FURTHER), key)
    made.presign(NOW)
    return made


def query(name: str, rdtype: str, flags: int = dns.flags.DO, subnet: str = "") -> bytes:
    options: list[dns.edns.Option] = []
    if subnet:
        options.append(dns.edns.ECSOption(subnet, 24))
    message = dns.message.make_query(
        dns.name.from_text(name, ORIGIN), rdtype, use_edns=0, ednsflags=flags, options=options
    )
    return message.to_wire()


def ask(server: Responder, sent: bytes, *, stream: bool = True) -> dns.message.Message:
    wire = server.respond(sent, RESOLVER, stream=stream)
    assert wire is not None
    return dns.message.from_wire(wire)


def validate(answer: dns.message.Message, key: ZoneKey, now: float = NOW) -> None:
    """Every set of answer and authority, but the NS records of a cut, has a good signature."""
    keys = {ORIGIN: dns.rrset.from_rdata(ORIGIN, 3600, key.dnskey).to_rdataset()}
    for section in (answer.answer, answer.authority):
        signatures = {
            (each.name, each.covers): each for each in section if each.rdtype == dns.rdatatype.RRSIG
        }
        sets = [each for each in section if each.rdtype != dns.rdatatype.RRSIG]
        own = [
            each for each in sets if each.rdtype != dns.rdatatype.NS or answer.flags & dns.flags.AA
        ]
        assert len(signatures) == len(own)
        for rrset in own:
            signature = signatures[rrset.name, rrset.rdtype]
            assert signature.ttl == rrset.ttl
            dns.dnssec.validate(rrset, signature, keys, now=now)


def proofs(answer: dns.message.Message) -> list[str]:
    """The NSEC records of the authority section."""
    return [each.to_text() for each in answer.authority if each.rdtype == dns.rdatatype.NSEC]


def nsec(name: str, types: str) -> str:
    """The proof that a name of the zone has these types and no other, as text."""
    return f"{name}.{ORIGIN} 300 IN NSEC \\000.{name.lower()}.{ORIGIN} {types}"


@pytest.mark.parametrize(
    ("name", "rdtype", "sets"),
    [
        ("@", "DNSKEY", 1), ("@", "SOA", 1), ("@", "NS", 1), ("@", "CDS", 1), ("@", "CDNSKEY", 1),
        ("static", "A", 1), ("StAtIc", "A", 1), ("www", "A", 2), ("out", "A", 1),
        ("a.wild", "TXT", 1), ("*.wild", "TXT", 1), ("many", "TXT", 1), ("ai", "A", 1),
        ("to-ai", "A", 1), ("ai", "HTTPS", 1), ("ai", "ANY", 1), ("signed", "DS", 1),
        ("static", "NSEC", 1),
    ],
)  # fmt: skip
def test_answers(signed: SignedZone, key: ZoneKey, name: str, rdtype: str, sets: int) -> None:
    answer = ask(responder(signed=signed), query(name, rdtype))
    assert answer.ednsflags & dns.flags.DO
    assert len(answer.answer) == 2 * sets
    assert not answer.authority
    validate(answer, key)
    plain = ask(responder(signed=signed), query(name, rdtype, flags=0))
    if rdtype != "NSEC":
        assert [each for each in answer.answer if each.rdtype != dns.rdatatype.RRSIG] == (
            plain.answer
        )
    assert all(each.rdtype != dns.rdatatype.RRSIG for each in plain.answer + plain.authority)


@pytest.mark.parametrize(
    ("name", "rdtype", "proof"),
    [
        ("static", "AAAA", nsec("static", "A RRSIG NSEC")),
        ("StAtIc", "TXT", nsec("StAtIc", "A RRSIG NSEC")),
        ("er", "TXT", nsec("er", "RRSIG NSEC")),
        ("ai", "TXT", nsec("ai", "A AAAA RRSIG NSEC HTTPS")),
        ("b.wild", "A", nsec("b.wild", "TXT RRSIG NSEC")),
        ("child", "DS", nsec("child", "NS RRSIG NSEC")),
        ("none", "A", nsec("none", "RRSIG NSEC NXNAME")),
        ("lost", "A", nsec("gone", "RRSIG NSEC NXNAME")),
    ],
)  # fmt: skip
def test_denials(signed: SignedZone, key: ZoneKey, name: str, rdtype: str, proof: str) -> None:
    answer = ask(responder(signed=signed), query(name, rdtype))
    assert (answer.rcode(), proofs(answer)) == (dns.rcode.NOERROR, [proof])
    assert {each.rdtype for each in answer.authority} == {
        dns.rdatatype.SOA, dns.rdatatype.NSEC, dns.rdatatype.RRSIG
    }  # fmt: skip
    validate(answer, key)
    nxdomain = dns.rcode.NXDOMAIN if "NXNAME" in proof else dns.rcode.NOERROR
    told = ask(responder(signed=signed), query(name, rdtype, dns.flags.DO | dns.flags.CO))
    assert (told.rcode(), proofs(told)) == (nxdomain, [proof])
    plain = ask(responder(signed=signed), query(name, rdtype, flags=0))
    assert (plain.rcode(), proofs(plain)) == (nxdomain, [])


def test_a_place_without_such_addresses_denies_that_type_alone(key: ZoneKey) -> None:
    server = responder(signed=SignedZone(zone(*key.records(ORIGIN)), key))
    server.places.order = lambda client, slot=0: ["iad"]  # type: ignore[method-assign]
    answer = ask(server, query("ai", "AAAA"))
    assert proofs(answer) == [nsec("ai", "A RRSIG NSEC HTTPS")]
    validate(answer, key)


def test_referrals(signed: SignedZone, key: ZoneKey) -> None:
    insecure = ask(responder(signed=signed), query("x.child", "A"))
    assert proofs(insecure) == [nsec("child", "NS RRSIG NSEC")]
    validate(insecure, key)
    secure = ask(responder(signed=signed), query("x.signed", "A"))
    assert [dns.rdatatype.to_text(each.rdtype) for each in secure.authority] == [
        "NS", "DS", "RRSIG"
    ]  # fmt: skip
    validate(secure, key)


def test_only_the_signature_of_the_proof_is_shown_as_such(signed: SignedZone, key: ZoneKey) -> None:
    answer = ask(responder(signed=signed), query("static", "RRSIG"))
    assert [each.covers for each in answer.answer] == [dns.rdatatype.NSEC]
    assert ask(responder(signed=signed), query("static", "TYPE128")).rcode() == dns.rcode.FORMERR


def test_each_order_of_regions_is_signed_once(key: ZoneKey, signed: SignedZone) -> None:
    clock = Clock(NOW)
    server = responder(clock, signed=signed)
    first = {}
    for subnet in ("203.0.113.0", "198.51.100.0", "203.0.112.0"):
        for rdtype in ("A", "HTTPS"):
            answer = ask(server, query("ai", rdtype, subnet=subnet))
            validate(answer, key)
            first[subnet, rdtype] = answer.answer[1]
    assert first["203.0.113.0", "A"] == first["203.0.112.0", "A"]
    assert first["203.0.113.0", "A"] != first["198.51.100.0", "A"]
    clock.now += RENEWAL - 1  # a later query changes nothing: signatures are found again
    again = ask(server, query("ai", "A", subnet="203.0.113.0"))
    assert again.answer[1] == first["203.0.113.0", "A"]


def test_signatures_are_renewed_before_their_end_a_few_at_a_time(key: ZoneKey) -> None:
    made = SignedZone(zone(*key.records(ORIGIN)), key)
    made.presign(NOW)
    count = len(list(made.zone.authoritative()))
    assert made.renew(NOW, 1000) == 0
    later = NOW + RENEWAL + 1
    assert [made.renew(later, count - 1) for _ in range(3)] == [count - 1, 1, 0]
    clock = Clock(NOW)
    clock.now = NOW + LIFETIME
    server = responder(clock, signed=made)
    validate(ask(server, query("static", "A")), key, later + LIFETIME - RENEWAL)
    # Validators whose clocks are behind take a new one.
    fresh = SignedZone(zone(*key.records(ORIGIN)), key)
    validate(ask(responder(signed=fresh), query("static", "A")), key, NOW - SKEW)
    with pytest.raises(dns.exception.ValidationFailure, match="no RRSIGs"):
        validate(ask(responder(signed=fresh), query("static", "A")), key, NOW - SKEW - 1)
    # Without the timer, a query does it.
    clock.now += LIFETIME
    validate(ask(server, query("static", "A")), key, clock.now)


def test_names_made_up_by_strangers_push_out_none_that_exist(
    key: ZoneKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry_dns.signing.signer.MAX_PASSING", 4)
    made = SignedZone(zone(*key.records(ORIGIN)), key)
    server = responder(signed=made)
    signature = ask(server, query("static", "A")).answer[1]
    first = ask(server, query("x0", "A")).authority
    for i in range(1, 6):
        validate(ask(server, query(f"x{i}", "A")), key)
    assert len(made._signer._passing) == 4
    assert ask(server, query("static", "A")).answer[1] == signature
    assert len(ask(server, query("x0", "A")).authority) == len(first)


def test_what_does_not_fit_is_cut(signed: SignedZone) -> None:
    server = responder(signed=signed)
    assert ask(server, query("ai", "A"), stream=False).answer
    for name, rdtype in (("@", "DNSKEY"), ("none", "A"), ("ai", "HTTPS"), ("many", "TXT")):
        sent = query(name, rdtype)
        wire = server.respond(sent, RESOLVER, stream=False)
        assert wire is not None
        answer = dns.message.from_wire(wire)
        assert answer.flags & dns.flags.TC
        assert not answer.answer
        assert len(wire) + IP_UDP_HEADER <= NO_COOKIE_FACTOR * (len(sent) + IP_UDP_HEADER)


def test_a_flood_of_names_is_one_budget_with_proofs_too(signed: SignedZone) -> None:
    server = responder(Clock(NOW), per_second=5.0, signed=signed)
    answers = [server.respond(query(f"y{i}", "A"), RESOLVER, stream=False) for i in range(25)]
    assert sum(answer is None for answer in answers) == 10


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "dns" / "zone.key"
    made = ZoneKey.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ZoneKey.load(path).dnskey == made.dnskey
    assert (made.dnskey.flags, made.dnskey.algorithm) == (257, 13)
    assert made.ds(ORIGIN).startswith(f"example.test. IN DS {dns.dnssec.key_id(made.dnskey)} 13 2 ")
    with pytest.raises(KeyUnusable, match="File exists"):
        ZoneKey.create(path)
    path.chmod(0o640)
    with pytest.raises(KeyUnusable, match="others may read"):
        ZoneKey.load(path)
    path.chmod(0o600)
    path.write_bytes(b"no key")
    with pytest.raises(KeyUnusable, match="no private key in PEM"):
        ZoneKey.load(path)
    with pytest.raises(KeyUnusable, match="No such file"):
        ZoneKey.load(tmp_path / "none")
