"""Signed queries by themselves: old signatures, wrong ones, and what else they ask for."""

from __future__ import annotations

import time

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import dns.tsig
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.example import ORIGIN
from tests.dns.transfer.secondaries import (
    KEY,
    LOOPBACK,
    respond,
    signed_query,
    transfers,
    tsig_of,
    with_server,
)


def test_an_old_signature_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, now = signed_query(), time.time()
    wire = sent.to_wire()
    monkeypatch.setattr(time, "time", lambda: now + 301)
    answer = respond(transfers(), wire)
    shown = dns.message.from_wire(answer, keyring=False)
    assert (shown.rcode(), shown.answer) == (dns.rcode.NOTAUTH, [])
    assert int.from_bytes(tsig_of(shown).other, "big") == int(now + 301)
    with pytest.raises(dns.tsig.PeerBadTime):  # it is signed, and so believed
        dns.message.from_wire(answer, keyring=KEY, request_mac=sent.mac)


def test_a_secondary_that_is_ahead_is_told_so() -> None:
    """RFC 1995, 2: with a newer serial than ours there is nothing to transfer."""

    def kinds(serial: int) -> list[str]:
        query = dns.message.make_query(ORIGIN, "IXFR")
        query.authority.append(
            dns.rrset.from_text(ORIGIN, 0, "IN", "SOA", f"ns1. hostmaster. {serial} 1 1 1 1")
        )
        query.use_tsig(KEY)
        answer = dns.message.from_wire(
            respond(transfers(), query.to_wire()), keyring=KEY, request_mac=query.mac, xfr=True
        )
        return [dns.rdatatype.to_text(each.rdtype) for each in answer.answer]

    assert kinds(1) == kinds(2) == kinds(1 << 31) == ["SOA"]
    for older in (0, (1 << 31) + 1, (1 << 32) - 1):
        assert len(kinds(older)) > 2


def test_answers_get_no_answer() -> None:
    wire = bytearray(signed_query().to_wire())
    wire[2] |= dns.flags.QR >> 8
    assert transfers().respond(bytes(wire), lambda query: None, stream=False) is None


@pytest.mark.parametrize(("name", "rcode"), [("@", dns.rcode.NOERROR), ("x", dns.rcode.NXDOMAIN)])
def test_other_signed_queries_get_signed_answers(name: str, rcode: dns.rcode.Rcode) -> None:
    async def test(port: int) -> None:
        for ask in (dns.asyncquery.udp, dns.asyncquery.tcp):
            answer = await ask(signed_query(name, "SOA"), LOOPBACK, port=port, timeout=60)
            assert (answer.rcode(), answer.had_tsig) == (rcode, True)

    with_server(test)


@given(st.data())
def test_mutated_signed_queries(draws: st.DataObject) -> None:
    wire = bytearray(signed_query("static", "A").to_wire())
    for _ in range(draws.draw(st.integers(1, 4))):
        wire[draws.draw(st.integers(0, len(wire) - 1))] = draws.draw(st.integers(0, 255))
    for frame in transfers().respond(bytes(wire), lambda query: None, stream=True) or ():
        assert dns.message.from_wire(frame, keyring=False).rcode() == dns.rcode.NOTAUTH
